"""What each trainer consists of on a host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Software(NamedTuple):
    """A trainer on a host.

    Attributes:
        venv: Folder of its environment in the clone.
        packages: Whose versions must be the same on all hosts.
        install: Script in setup-utils that makes the environment.
        program: Of a rank.
        code: Folders and files of the clone that must be the same on all hosts.
    """

    venv: str
    packages: Sequence[str]
    install: str
    program: str
    code: Sequence[str]


TRAINERS = {
    "mxnet": Software(
        ".venv",
        ("mxnet", "horovod", "numpy", "mpi4py"),
        "install.sh",
        "train_memory.py",
        ("mxnet", "partial_fc", "setup-utils", "train_memory.py", "run.sh", "config.sh"),
    ),
    "torch": Software(
        ".venv-torch",
        ("torch", "numpy"),
        "install-torch.sh",
        "train.py",
        ("pytorch", "partial_fc", "setup-utils", "train.py"),
    ),
}
