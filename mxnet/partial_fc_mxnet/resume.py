"""What a training begins with: nothing, the weights of another one, or where a checkpoint left off."""

from __future__ import annotations

import logging
import os
from typing import NamedTuple

import numpy as np

from partial_fc.checkpoint import CheckpointFolder, read_class_map
from partial_fc.training.run_folder import begin_run, begun_by

from . import backbone_state, collectives
from .pretrained import read_pretrained
from .saved_training import SavedTraining

AUTO, SAME = "auto", "same"


def checkpoint_folder(settings, folder: str) -> CheckpointFolder:
    """Where the checkpoints of a training are that writes to ``folder``."""
    return CheckpointFolder(os.path.join(folder, "checkpoints"), settings.checkpoints_kept)


class ResumePlan(NamedTuple):
    """How a training begins.

    Attributes:
        saved: the checkpoint to go on from, None for none.
        here: it is one of this output folder.
        keep: go on in the output folder as it is.
        remarks: for the log, which is not there yet.
    """

    saved: SavedTraining | None
    here: bool
    keep: bool
    remarks: list[str]


def find_checkpoint(settings, folder: str, run: str) -> ResumePlan:
    """Looks for the checkpoint to go on from.

    Args:
        settings: of default.py; ``resume``, ``class_map``.
        folder: of the outputs, on rank 0's host.
        run: what tells the restarts of one run.sh from other trainings; may be empty. They go on in the folder that the
            first of them has begun, whatever ``resume`` says.

    Raises:
        JobError: on every rank, where there is no such checkpoint or it is damaged.
    """
    checkpoints = checkpoint_folder(settings, folder)
    remarks: list[str] = []
    restarted = collectives.gather("restarted", bool(run) and begun_by(folder, run))[0]
    saved = SavedTraining.newest(checkpoints, remarks.append) if restarted or settings.resume == AUTO else None
    if saved is None and settings.resume not in ("", AUTO):
        saved = SavedTraining.open(settings.resume)
    here = saved is not None and _same_path(os.path.dirname(os.path.abspath(saved.path)), checkpoints.path)
    # A restart goes on from a checkpoint of its own, whose classes are mapped already, once there is one.
    if saved is not None and settings.class_map and _same_path(saved.path, settings.resume):
        num_saved = saved.manifest.num_classes
        saved.class_map = collectives.run_on_all_ranks("class_map", lambda: _class_map(settings, num_saved))
    if saved is None and (restarted or settings.resume):
        remarks.append(f"no checkpoint to go on from in {checkpoints.path}: training starts from its beginning")
    return ResumePlan(saved, here, restarted or here, remarks)


def take_ownership(settings, folder: str, run: str, beginning: ResumePlan) -> None:
    """Makes the output folder that of this run, when nothing can refuse the beginning any more; on rank 0.

    Checkpoints that are newer than the one gone on from are kept under another name: what follows replaces them.

    Raises:
        OSError: the folder cannot be written to.
    """
    if beginning.saved is not None and beginning.here:
        checkpoints = checkpoint_folder(settings, folder)
        for path in checkpoints.leave(beginning.saved.manifest.num_update):
            logging.warning("a newer checkpoint is not gone on from; it is kept as %s", path)
    begin_run(folder, run)


def take_pretrained(settings, module) -> None:
    """Gives a module with parameters those of ``settings.pretrained``, and its bank the centers of ``class_map``.

    Raises:
        JobError: on every rank, where they cannot be read or do not fit.
    """
    found = read_pretrained(settings.pretrained, with_classes=bool(settings.class_map))
    collectives.run_on_all_ranks("take_pretrained", lambda: _take(settings, module, found))


def _take(settings, module, found) -> None:
    try:
        backbone_state.set_weights(module._module, found.weights)
        if found.classes is not None:
            module.memory_bank.take(found.classes, _class_map(settings, found.classes.num_classes))
    except ValueError as error:
        raise ValueError(f"cannot begin with {found.source}: {error}") from None
    if module.rank == 0:
        logging.info("begins with the weights in %s%s", found.source, " and class centers" if found.classes else "")


def _class_map(settings, num_saved: int) -> np.ndarray:
    if settings.class_map != SAME:
        return read_class_map(settings.class_map, settings.num_classes, num_saved)
    if num_saved < settings.num_classes:
        raise ValueError(
            f"class_map is {SAME!r}, but there are centers of {num_saved} classes and {settings.num_classes} here"
        )
    return np.arange(settings.num_classes)


def _same_path(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
