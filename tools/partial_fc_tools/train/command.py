"""Starts a training on this host: `partial-fc train`. The program of the training reads options and settings."""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from partial_fc.train.torch_training import PROGRAM


def start(words: Sequence[str]) -> NoReturn:
    """Replaces this process by the launcher of a training; a later ``--nproc`` in ``words`` wins."""
    os.execv(sys.executable, [sys.executable, str(PROGRAM), "--nproc", "auto", *words])
