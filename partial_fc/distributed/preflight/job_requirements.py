"""What a training's words ask of a host: the files of its data set and the folder of its outputs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

# Runs in the clone with its own Python: only the project itself knows its settings. MXNet is not imported.
PROGRAM = """
import json, os, sys
import train_memory
from partial_fc.data.face_records import index_path
try:
    settings = train_memory.read_settings(train_memory.parse_args(sys.argv[1:]))
    rec = settings.rec or os.path.join(settings.data_root, settings.data_name, "train.rec")
    folder = os.path.dirname(rec)
    needed = [] if settings.debug else [rec, index_path(rec)]
    beside = ["property", *(name + ".bin" for name in settings.val_targets)]
    print(json.dumps({
        "name": settings.dataset,
        "needed": needed,
        "beside": [os.path.join(folder, name) for name in beside] if needed else [],
        "drawn": settings.dataset == "demo" and not settings.rec,
        "models": settings.models_root,
        "checkpoints": bool(settings.checkpoint_every),
    }))
except (ValueError, OSError, ImportError) as error:
    sys.exit(f"error: {error}")
"""


class Training(NamedTuple):
    """Attributes:
    name: of the data set.
    needed: files without which it does not begin; none with dummy images.
    beside: files that may be missing, but must be the same on all hosts.
    drawn: each host draws these files by itself where they are missing.
    models: folder of the outputs.
    checkpoints: it refuses to begin where the hosts do not share that folder.
    """

    name: str
    needed: Sequence[str]
    beside: Sequence[str]
    drawn: bool
    models: str
    checkpoints: bool


def read(clone: str, words: Sequence[str], seconds: float = 8) -> Training | None:
    """What these words of a command line ask for; None where .venv is missing, or --help is all they ask.

    Raises:
        ValueError: the training would refuse them; with its sentence.
    """
    python = os.path.join(clone, ".venv", "bin", "python")
    if not os.path.exists(python):
        return None
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((clone, os.path.join(clone, "mxnet")))}
    command = [python, "-c", PROGRAM, *words]
    try:
        done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise ValueError(f"reading the settings takes more than {seconds} s: is {clone} on a slow disk?") from None
    if done.returncode:
        raise ValueError(_sentence(done.stderr.strip().splitlines()))
    lines = done.stdout.splitlines()
    return Training(**json.loads(lines[-1])) if lines and lines[-1].startswith("{") else None


def _sentence(lines: Sequence[str]) -> str:
    """The error of the program, or of a config.py that is no Python, with its place."""
    if lines[-1].startswith("error: "):
        return lines[-1][len("error: ") :]
    places = [line.strip() for line in lines if line.lstrip().startswith("File ")]
    return f"{lines[-1]} ({places[-1]})" if places else lines[-1]
