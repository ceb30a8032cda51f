"""The checkpoints that a path names."""

from __future__ import annotations

import os

from partial_fc.checkpoint.layout import MANIFEST
from partial_fc.checkpoint.manager import CheckpointFolder


def steps_at(path: str) -> list[str]:
    """Returns the folders of the complete checkpoints in a folder, newest first; or the path, if it is a checkpoint.

    Raises:
        FileNotFoundError: There is none.
    """
    if os.path.exists(os.path.join(path, MANIFEST)):
        return [path]
    steps = [step for _, step in CheckpointFolder(path, kept=1).complete()]
    if not steps:
        raise FileNotFoundError(f"no complete checkpoint in {path}: give the folder checkpoints of a training")
    return steps
