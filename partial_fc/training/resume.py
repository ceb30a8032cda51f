"""How a training starts: from new weights, from the weights of another training, or from a checkpoint."""

from __future__ import annotations

import logging
import os
from typing import NamedTuple

import numpy as np

from partial_fc.checkpoint import CheckpointFolder, Conventions, read_class_map
from partial_fc.checkpoint.layout import MANIFEST
from partial_fc.data.cursor import Place
from partial_fc.distributed.collectives import Collectives
from partial_fc.distributed.consistency import arrays_digest

from .engine import Engine, Framework
from .pretrained import Pretrained, ReadFiles, pretrained_from_checkpoint, pretrained_from_files
from .run_folder import CHECKPOINTS, begin_run, begun_by
from .saved_training import SavedTraining

AUTO, SAME = "auto", "same"  # values of the settings resume and class_map


class ResumePlan(NamedTuple):
    """How a training starts.

    Attributes:
        checkpoint: to resume from; None for none.
        in_folder: whether it is in this training's output folder.
        keep_folder: whether the training continues in the output folder as it is.
        messages: to log once the log file is open.
        pretrained: weights to start from; None for none.
    """

    checkpoint: SavedTraining | None
    in_folder: bool
    keep_folder: bool
    messages: list[str]
    pretrained: Pretrained | None = None

    @property
    def num_update(self) -> int:
        """Number of updates done so far."""
        return self.checkpoint.manifest.num_update if self.checkpoint else 0

    @property
    def place(self) -> Place:
        """Position in the data."""
        return self.checkpoint.place if self.checkpoint else (0, 0)

    @property
    def resumed_update(self) -> int | None:
        """Update of the checkpoint in the output folder that the training resumes from; None for none."""
        return self.num_update if self.in_folder else None

    def conventions(self, own: Conventions) -> Conventions:
        """Returns those of what the training starts from; ``own`` are those of a new training."""
        if self.checkpoint:
            return self.checkpoint.conventions
        given = self.pretrained and self.pretrained.conventions
        return given._replace(sums_gradients=own.sums_gradients) if given else own


def run_name() -> str:
    """Returns the name that run.sh gives to a run and its restarts; empty for another launcher."""
    return os.environ.get("PARTIAL_FC_RUN", "")


def find_checkpoint(settings, folder: str, run: str, collectives: Collectives) -> ResumePlan:
    """Finds the checkpoint to resume from.

    Collectives: all-gather ``restarted``, those of SavedTraining.newest or open, all-gather ``together.class_map``.

    Args:
        settings: of default.py; ``resume``, ``class_map``.
        folder: output folder, on rank 0's host.
        run: name that run.sh gives to a run and its restarts; may be empty. A restart resumes in the folder that the
            run took ownership of, whatever ``resume`` says.
        collectives: between the ranks.

    Raises:
        JobError: On every rank, if the checkpoint does not exist or is damaged.
    """
    checkpoints = checkpoint_folder(settings, folder)
    messages: list[str] = []
    restarted = collectives.broadcast("restarted", bool(run) and begun_by(folder, run))
    checkpoint = None
    if restarted or settings.resume == AUTO:
        checkpoint = SavedTraining.newest(checkpoints, collectives, messages.append)
    if checkpoint is None and settings.resume not in ("", AUTO):
        checkpoint = SavedTraining.open(settings.resume, collectives)
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


def checkpoint_folder(settings, folder: str) -> CheckpointFolder:
    """Returns the checkpoints of a training whose output folder is ``folder``."""
    return CheckpointFolder(os.path.join(folder, CHECKPOINTS), settings.checkpoints_kept)


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
            f"{settings.num_classes}: give a class map, see partial-fc checkpoints map"
        )
    return np.arange(settings.num_classes)


def same_path(first: str, second: str) -> bool:
    """Returns whether two paths lead to the same file or folder."""
    return os.path.realpath(first) == os.path.realpath(second)


def read_pretrained(
    path: str,
    with_classes: bool,
    collectives: Collectives,
    read_files: ReadFiles = lambda path, with_classes: None,
) -> Pretrained:
    """Reads the weights of a backbone and, if requested, class centers.

    Collectives: those of SavedTraining.open for a checkpoint, all-gather ``together.pretrained``.

    Args:
        path: of a checkpoint's folder, a ``.params`` file, or the folder of one, which also has the
            ``<rank>_centers.param`` of all ranks; or what ``read_files`` reads.
        with_classes: whether to read the class centers.
        collectives: between the ranks.
        read_files: see Framework.read_pretrained.

    Raises:
        JobError: On every rank, if a file is missing or damaged; the message names it.
    """
    if not os.path.exists(os.path.join(path, MANIFEST)):
        return collectives.run_on_all_ranks("pretrained", lambda: pretrained_from_files(path, with_classes, read_files))
    manifest = SavedTraining.open(path, collectives).manifest
    return collectives.run_on_all_ranks(
        "pretrained",
        lambda: pretrained_from_checkpoint(path, manifest, with_classes, collectives.rank, collectives.size),
    )


def with_pretrained(plan: ResumePlan, settings, framework: Framework) -> ResumePlan:
    """Adds the weights of ``settings.pretrained`` to a plan without a checkpoint, see read_pretrained."""
    if plan.checkpoint or not settings.pretrained:
        return plan
    with_classes, read_files = bool(settings.class_map), framework.read_pretrained
    return plan._replace(
        pretrained=read_pretrained(settings.pretrained, with_classes, framework.collectives, read_files)
    )


def take_pretrained(pretrained: Pretrained, settings, engine: Engine) -> None:
    """Sets an engine's parameters to those of ``pretrained``, and its centers by ``settings.class_map``.

    Collectives: all-gathers ``agree`` and ``together.take_pretrained``.

    Raises:
        JobError: On every rank, if the weights do not fit.
    """
    # Each rank reads the file of its own host; the running statistics of a checkpoint differ between ranks.
    same = {name: array for name, array in pretrained.weights.items() if not name.startswith("aux:")}
    engine.collectives.assert_same_on_all_ranks({"pretrained weights": arrays_digest(same)})
    engine.collectives.run_on_all_ranks("take_pretrained", lambda: _set_pretrained(settings, engine, pretrained))


def _set_pretrained(settings, engine: Engine, pretrained: Pretrained) -> None:
    classes = pretrained.classes
    given, own = pretrained.conventions, engine.conventions
    try:
        if given and given._replace(sums_gradients=own.sums_gradients) != own:
            raise ValueError(f"it has {given}, but this backbone {own}: build it with get_model")
        engine.set_weights(pretrained.weights)
        if classes is not None:
            engine.memory_bank.take(classes.without_momentum(), load_class_map(settings, classes.num_classes))
    except ValueError as error:
        raise ValueError(f"cannot start from {pretrained.source}: {error}") from None
    if engine.collectives.rank == 0:
        logging.info("starts from the weights in %s%s", pretrained.source, " and class centers" if classes else "")
