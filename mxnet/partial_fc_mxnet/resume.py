"""How a training starts: from new weights, from the weights of another training, or from a checkpoint."""

from __future__ import annotations

import logging
import os
from typing import NamedTuple

import horovod.mxnet as hvd

from partial_fc.checkpoint.layout import MANIFEST
from partial_fc.training.pretrained import Pretrained, pretrained_from_checkpoint, pretrained_from_files
from partial_fc.training.resume import AUTO, checkpoint_folder, load_class_map, same_path
from partial_fc.training.run_folder import begun_by

from . import collectives, module_state
from .saved_training import SavedTraining


class ResumePlan(NamedTuple):
    """How a training starts.

    Attributes:
        checkpoint: to resume from; None for none.
        in_folder: whether it is in this training's output folder.
        keep_folder: whether the training continues in the output folder as it is.
        messages: to log once the log file is open.
    """

    checkpoint: SavedTraining | None
    in_folder: bool
    keep_folder: bool
    messages: list[str]

    @property
    def num_update(self) -> int:
        """Number of updates done so far."""
        return self.checkpoint.manifest.num_update if self.checkpoint else 0

    @property
    def resumed_update(self) -> int | None:
        """Update of the checkpoint in the output folder that the training resumes from; None for none."""
        return self.num_update if self.in_folder else None


def run_name() -> str:
    """Returns the name that run.sh gives to a run and its restarts; empty for another launcher."""
    return os.environ.get("PARTIAL_FC_RUN", "")


def find_checkpoint(settings, folder: str, run: str) -> ResumePlan:
    """Finds the checkpoint to resume from.

    Collectives: all-gather ``restarted``, those of SavedTraining.newest or open, all-gather ``together.class_map``.

    Args:
        settings: of default.py; ``resume``, ``class_map``.
        folder: output folder, on rank 0's host.
        run: name that run.sh gives to a run and its restarts; may be empty. A restart resumes in the folder that the
            run took ownership of, whatever ``resume`` says.

    Raises:
        JobError: On every rank, if the checkpoint does not exist or is damaged.
    """
    checkpoints = checkpoint_folder(settings, folder)
    messages: list[str] = []
    restarted = collectives.broadcast("restarted", bool(run) and begun_by(folder, run))
    checkpoint = SavedTraining.newest(checkpoints, messages.append) if restarted or settings.resume == AUTO else None
    if checkpoint is None and settings.resume not in ("", AUTO):
        checkpoint = SavedTraining.open(settings.resume)
    in_folder = checkpoint is not None and same_path(
        os.path.dirname(os.path.abspath(checkpoint.path)), checkpoints.path
    )
    # The classes of a restart's own checkpoints are mapped already.
    if checkpoint is not None and settings.class_map and same_path(checkpoint.path, settings.resume):
        num_saved = checkpoint.manifest.num_classes
        checkpoint.class_map = collectives.run_on_all_ranks("class_map", lambda: load_class_map(settings, num_saved))
    if checkpoint is None and (restarted or settings.resume):
        messages.append(f"no checkpoint to resume from in {checkpoints.path}: training starts from update 0")
    return ResumePlan(checkpoint, in_folder, restarted or in_folder, messages)


def read_pretrained(path: str, with_classes: bool) -> Pretrained:
    """Reads the weights of a backbone and, if requested, class centers.

    Collectives: those of SavedTraining.open for a checkpoint, all-gather ``together.pretrained``.

    Args:
        path: of a checkpoint's folder, a ``.params`` file, or the folder of one, which also has the
            ``<rank>_centers.param`` of all ranks.
        with_classes: whether to read the class centers.

    Raises:
        JobError: On every rank, if a file is missing or damaged; the message names it.
    """
    if not os.path.exists(os.path.join(path, MANIFEST)):
        return collectives.run_on_all_ranks("pretrained", lambda: pretrained_from_files(path, with_classes))
    manifest = SavedTraining.open(path).manifest
    return collectives.run_on_all_ranks(
        "pretrained", lambda: pretrained_from_checkpoint(path, manifest, with_classes, hvd.rank(), hvd.size())
    )


def load_pretrained(settings, module) -> None:
    """Sets a module's parameters to those of ``settings.pretrained``, and its centers by ``settings.class_map``.

    Collectives: those of read_pretrained, all-gather ``together.take_pretrained``.

    Raises:
        JobError: On every rank, if the weights cannot be read or do not fit.
    """
    pretrained = read_pretrained(settings.pretrained, with_classes=bool(settings.class_map))
    collectives.run_on_all_ranks("take_pretrained", lambda: _set_pretrained(settings, module, pretrained))


def _set_pretrained(settings, module, pretrained: Pretrained) -> None:
    classes = pretrained.classes
    try:
        module_state.set_weights(module, pretrained.weights)
        if classes is not None:
            module.memory_bank.take(classes, load_class_map(settings, classes.num_classes))
    except ValueError as error:
        raise ValueError(f"cannot start from {pretrained.source}: {error}") from None
    if module.rank == 0:
        logging.info("starts from the weights in %s%s", pretrained.source, " and class centers" if classes else "")
