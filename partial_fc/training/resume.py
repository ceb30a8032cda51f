"""Which checkpoints and class centers a training starts from, as far as one process decides it."""

from __future__ import annotations

import logging
import os

import numpy as np

from partial_fc.checkpoint import CheckpointFolder, read_class_map

from .run_folder import begin_run

AUTO, SAME = "auto", "same"  # values of the settings resume and class_map


def checkpoint_folder(settings, folder: str) -> CheckpointFolder:
    """Returns the checkpoints of a training whose output folder is ``folder``."""
    return CheckpointFolder(os.path.join(folder, "checkpoints"), settings.checkpoints_kept)


def take_ownership(folder: str, run: str, checkpoints: CheckpointFolder, resumed_update: int | None) -> None:
    """Marks the output folder as this run's, once the training cannot be refused any more; on rank 0.

    Checkpoints newer than the one resumed from are kept under another name, because this training replaces them.

    Args:
        folder: output folder.
        run: name of the run, see find_checkpoint.
        checkpoints: of the output folder.
        resumed_update: update of the checkpoint in this folder that the training resumes from; None for none.

    Raises:
        OSError: The folder cannot be written to.
    """
    if resumed_update is not None:
        for path in checkpoints.leave(resumed_update):
            logging.warning("not resumed from a newer checkpoint; it is kept as %s", path)
    begin_run(folder, run)


def load_class_map(settings, num_saved: int) -> np.ndarray:
    """Reads the class map that the setting ``class_map`` names.

    Args:
        settings: of default.py; ``class_map`` is SAME or the path of a file.
        num_saved: number of classes whose centers were saved.

    Returns:
        (C,) int64, see partial_fc.checkpoint.class_map.

    Raises:
        OSError, ValueError: The file cannot be read, or the map does not fit the classes.
    """
    if settings.class_map != SAME:
        return read_class_map(settings.class_map, settings.num_classes, num_saved)
    if num_saved < settings.num_classes:
        raise ValueError(
            f"class_map is {SAME!r}, but the saved centers are of {num_saved} classes and this training has "
            f"{settings.num_classes}: give a class map, see python -m partial_fc.checkpoint map"
        )
    return np.arange(settings.num_classes)


def same_path(first: str, second: str) -> bool:
    """Returns whether two paths lead to the same file or folder."""
    return os.path.realpath(first) == os.path.realpath(second)
