"""What a training requires of a host: the trainer's environment, the files of the data set, the output folder."""

import json
import os
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from partial_fc.data.sources.forms import is_record_set, set_in
from partial_fc.utils.options import options_of

READ_TIMEOUT = 30  # seconds to read the settings, as the first import from a network file system may be slow


class Software(NamedTuple):
    """The software of a trainer."""

    venv: str  # folder of its environment in the clone
    install: str  # script in setup-utils that installs the environment
    program: str  # program that each rank runs


TRAINERS = {
    "mxnet": Software(".venv", "install.sh", "train_memory.py"),
    "torch": Software(".venv-torch", "install-torch.sh", "train.py"),
}


class Training(NamedTuple):
    """The requirements of a training."""

    needed: Sequence[str] = ()  # record files that it cannot start without
    optional: Sequence[str] = ()  # optional files, which must be the same on all hosts
    shared: str = ""  # folder for checkpoints, which all hosts must share; empty if it saves none


def read(clone: str, software: Software, arguments: Sequence[str]) -> Training:
    """Derives the requirements of a training from its arguments, by running its program with ``--print-config``.

    Without the environment, or with ``--help`` among the arguments, there are no requirements.

    Raises:
        ValueError: The training would refuse the arguments.
    """
    python = os.path.join(clone, software.venv, "bin", "python")
    if not os.path.exists(python):
        return Training()
    command = [python, os.path.join(clone, software.program), *arguments, "--print-config"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=READ_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise ValueError(f"reading the settings takes more than {READ_TIMEOUT} s: is {clone} on a slow disk?") from None
    if done.returncode:
        _, error, message = done.stderr.strip().partition("error: ")
        raise ValueError(message if error else done.stderr.strip())  # no "error: " for a syntax error in config.py
    if not done.stdout.startswith("{"):
        return Training()
    settings = json.loads(done.stdout)
    saves = settings["checkpoint_every"] or options_of(settings, "checkpoint_options").minutes
    shared = (settings["output"] or settings["models_root"]) if saves else ""
    rec = settings["rec"] or set_in(os.path.join(settings["data_root"], settings["data_name"]))
    is_synthetic = settings["debug"] or (settings["dataset"] == "demo" and not settings["rec"])
    if is_synthetic or not is_record_set(rec):  # only record files are compared
        return Training(shared=shared)
    names = ["property", *(f"{name}.bin" for name in settings["val_targets"])]
    optional = [os.path.join(os.path.dirname(rec), name) for name in names]
    return Training([rec, f"{os.path.splitext(rec)[0]}.idx"], optional, shared)
