"""What a training requires of a host: the files of its data set and the folder of its outputs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .software import Software


class Training(NamedTuple):
    """The requirements of a training.

    Attributes:
        name: Name of the data set.
        needed: Files without which it does not start; none with dummy images.
        beside: Files that may be missing, but must be the same on all hosts.
        drawn: Whether each host draws these files itself if they are missing.
        models: Folder of the outputs.
        checkpoints: Whether it refuses to start where the hosts do not share that folder.
    """

    name: str
    needed: Sequence[str]
    beside: Sequence[str]
    drawn: bool
    models: str
    checkpoints: bool


def read(clone: str, software: Software, arguments: Sequence[str], seconds: float = 8) -> Training | None:
    """Derives the requirements from the arguments of a training, by its program with ``--print-config``.

    Returns:
        None if the environment is missing, or if the arguments only ask for help.

    Raises:
        ValueError: The training would refuse the arguments, with its message.
    """
    python = os.path.join(clone, software.venv, "bin", "python")
    if not os.path.exists(python):
        return None
    command = [python, os.path.join(clone, software.program), *arguments, "--print-config"]
    try:
        done = subprocess.run(command, cwd=clone, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise ValueError(f"reading the settings takes more than {seconds} s: is {clone} on a slow disk?") from None
    if done.returncode:
        raise ValueError(_message(done.stderr.strip().splitlines()))
    return requirements(json.loads(done.stdout)) if done.stdout.startswith("{") else None


def requirements(settings: Mapping[str, Any]) -> Training:
    """The requirements of a training with these settings."""
    rec = settings["rec"] or os.path.join(settings["data_root"], settings["data_name"], "train.rec")
    names = ["property", *(f"{name}.bin" for name in settings["val_targets"])]
    files = not settings["debug"]
    return Training(
        name=settings["dataset"],
        needed=[rec, f"{os.path.splitext(rec)[0]}.idx"] if files else [],
        beside=[os.path.join(os.path.dirname(rec), name) for name in names] if files else [],
        drawn=settings["dataset"] == "demo" and not settings["rec"],
        models=settings["output"] or settings["models_root"],
        checkpoints=bool(settings["checkpoint_every"]),
    )


def _message(lines: Sequence[str]) -> str:
    """The error of the program, or that of a config.py with a syntax error, with its place."""
    if lines[-1].startswith("error: "):
        return lines[-1][len("error: ") :]
    places = [line.strip() for line in lines if line.lstrip().startswith("File ")]
    return f"{lines[-1]} ({places[-1]})" if places else lines[-1]
