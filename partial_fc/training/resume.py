"""How a training starts: from new weights, from the weights of another training, or from a checkpoint."""

import logging
import os
from typing import NamedTuple

import numpy as np

from partial_fc.checkpoint import CheckpointFolder, ModelFormat, SavedClasses, read_class_map
from partial_fc.checkpoint.backbone import AVERAGE, read_backbone
from partial_fc.checkpoint.layout import MANIFEST
from partial_fc.data.cursor import Position
from partial_fc.distributed.collectives import Collectives
from partial_fc.distributed.consistency import arrays_digest
from partial_fc.distributed.errors import JobError
from partial_fc.distributed.shared_folder import hosts_without_shared_folder
from partial_fc.utils.options import options_of

from .engine import Engine
from .foreign_checkpoint import ReadForeign
from .pretrained import Pretrained, ReadFiles, pretrained_from_files
from .run_folder import CHECKPOINTS, begun_by, check_writable, prepare_folder, wait_for_earlier_attempt
from .saved_training import SavedTraining

AUTO, SAME, MEAN = "auto", "same", "mean"  # values of the settings resume, class_map and new_centers
RUN = "PARTIAL_FC_RUN"  # variable with the name that run.sh gives to a run and its restarts


class ResumePlan(NamedTuple):
    """How a training starts."""

    checkpoint: SavedTraining | None  # to resume from; None for none
    in_folder: bool  # whether it is in this training's output folder
    keep_folder: bool  # whether the training continues in the output folder as it is
    messages: list[str]  # to log once the log file is open
    pretrained: str = ""  # path of weights to start from; empty for none

    @property
    def num_update(self) -> int:
        """Number of updates done so far."""
        return self.checkpoint.manifest.num_update if self.checkpoint else 0

    @property
    def position(self) -> Position:
        """Position in the data."""
        return self.checkpoint.position if self.checkpoint else (0, 0)

    @property
    def resumed_update(self) -> int | None:
        """Update of the checkpoint in the output folder that the training resumes from; None for none."""
        return self.num_update if self.in_folder else None

    def model_format(self, pretrained: Pretrained | None, own: ModelFormat) -> ModelFormat:
        """Returns those of what the training starts from; ``own`` are those of a new training."""
        if self.checkpoint:
            return self.checkpoint.model_format
        given = pretrained and pretrained.model_format
        return given._replace(momentum_convention=own.momentum_convention) if given else own


NEW_WEIGHTS = ResumePlan(None, False, False, [])


def find_checkpoint(settings, folder: str, collectives: Collectives, read_foreign: ReadForeign) -> ResumePlan:
    """Finds the checkpoint to resume from, and returns how the training starts.

    A restart by run.sh resumes in the folder that its run took ownership of, whatever ``resume`` says.

    Collectives: all-gather ``restarted``, after a restart ``status.earlier_attempt``, those of SavedTraining.newest or
    find, all-gather ``status.class_map``.

    Args:
        settings: of the training; ``resume``, ``pretrained``, ``class_map``, ``new_centers``.
        folder: output folder, on rank 0's host.
        collectives, read_foreign: see Collectives and Framework.read_checkpoint.

    Raises:
        JobError: On every rank, if the checkpoint does not exist or is damaged.
    """
    checkpoints = checkpoint_folder(settings, folder)
    messages: list[str] = []
    run = os.environ.get(RUN, "")
    restarted = collectives.broadcast("restarted", bool(run) and begun_by(folder, run))
    if restarted:
        collectives.on_rank_zero("earlier_attempt", wait_for_earlier_attempt, folder)
    checkpoint = None
    if restarted or settings.resume == AUTO:
        checkpoint = SavedTraining.newest(checkpoints, collectives, messages.append)
    if checkpoint is None and settings.resume not in ("", AUTO):
        checkpoint = SavedTraining.find(settings.resume, collectives, read_foreign, settings.gradient_acc)
        messages += checkpoint.foreign.messages if checkpoint.foreign else []
    real, parent = os.path.realpath, os.path.dirname
    in_folder = checkpoint is not None and real(parent(os.path.abspath(checkpoint.path))) == real(checkpoints.path)
    # The classes of a restart's own checkpoints are mapped already.
    if checkpoint is not None and settings.class_map and real(checkpoint.path) == real(settings.resume):
        num_saved = checkpoint.manifest.num_classes
        class_map = collectives.run_on_all_ranks("class_map", lambda: load_class_map(settings, num_saved))
        checkpoint = checkpoint.with_classes(class_map)
    if checkpoint is not None and checkpoint.class_map is None and settings.new_centers == MEAN:
        messages.append("new_centers is ignored: the class centers come from the checkpoint")
    if checkpoint is None and (restarted or settings.resume):
        messages.append(f"no checkpoint to resume from in {checkpoints.path}: training starts from update 0")
    pretrained = "" if checkpoint else settings.pretrained
    return ResumePlan(checkpoint, in_folder, restarted or in_folder, messages, pretrained)


def checkpoint_folder(settings, folder: str) -> CheckpointFolder:
    """Returns the checkpoints of a training whose output folder is ``folder``."""
    return CheckpointFolder(os.path.join(folder, CHECKPOINTS), options_of(settings, "checkpoint_options").kept)


def writes_checkpoints(settings) -> bool:
    """Whether a training writes checkpoints that nobody asks for."""
    return bool(settings["checkpoint_every"] or options_of(settings, "checkpoint_options").minutes)


def prepare_output(settings, folder: str, plan: ResumePlan, collectives: Collectives) -> None:
    """Creates the output folder, or checks that the training may begin in it, and that all ranks can write there.

    Collectives: all-gathers ``status.output`` and ``status.output_of_ranks``, those of hosts_without_shared_folder.

    Raises:
        JobError: On every rank, if one cannot write, or if hosts see different folders but write to one checkpoint.
    """

    def prepare() -> None:
        inputs = [plan.checkpoint.path] if plan.checkpoint else [settings.pretrained, settings.class_map]
        prepare_folder(folder, plan.keep_folder, [path for path in inputs if path not in ("", SAME)])
        checkpoint_folder(settings, folder).clean()

    collectives.on_rank_zero("output", prepare)
    collectives.run_on_all_ranks("output_of_ranks", lambda: check_writable(folder, collectives.rank))
    hosts = hosts_without_shared_folder(collectives, folder)
    if hosts and writes_checkpoints(settings):
        raise JobError(
            f"{', '.join(hosts)} and rank 0's host do not see the same folder {folder}, but all ranks write to one "
            "checkpoint: set output or models_root to a shared disk, or train without checkpoints "
            "(checkpoint_every=0 checkpoint_options=minutes=0)"
        )


def load_class_map(settings, num_saved: int) -> np.ndarray:
    """Returns the class map (C,) int64 that the setting ``class_map`` names, SAME or a path, for so many saved classes.

    Raises OSError or ValueError if the file cannot be read, or the map does not fit the classes.
    """
    if settings.class_map != SAME:
        return read_class_map(settings.class_map, settings.num_classes, num_saved)
    if num_saved < settings.num_classes:
        raise ValueError(
            f"class_map is {SAME!r}, but the saved centers are of {num_saved} classes and this training has "
            f"{settings.num_classes}: give a class map, see partial-fc checkpoints map"
        )
    return np.arange(settings.num_classes)


def read_pretrained(path: str, with_classes: bool, collectives: Collectives, read_files: ReadFiles) -> Pretrained:
    """Reads the weights of a backbone and, if requested, class centers.

    Collectives: those of SavedTraining.open for a checkpoint, all-gather ``status.pretrained``.

    Args:
        path: of a checkpoint's folder, a ``.params`` file, or the folder of one, which also has the
            ``<rank>_centers.param`` of all ranks; or what ``read_files`` reads.
        with_classes: whether to read the class centers.
        collectives, read_files: see Collectives and Framework.read_pretrained.

    Raises:
        JobError: On every rank, if a file is missing or damaged; the message names it.
    """
    if not os.path.exists(os.path.join(path, MANIFEST)):
        return collectives.run_on_all_ranks("pretrained", lambda: pretrained_from_files(path, with_classes, read_files))
    saved = SavedTraining.open(path, collectives)

    def read() -> Pretrained:
        classes = SavedClasses.of_checkpoint(path, saved.manifest) if with_classes else None
        arrays = read_backbone(path, saved.manifest, collectives.rank, collectives.size)
        weights = {name: array for name, array in arrays.items() if not name.startswith(AVERAGE)}
        return Pretrained(path, weights, saved.model_format, classes)

    return collectives.run_on_all_ranks("pretrained", read)


def take_pretrained(pretrained: Pretrained, settings, engine: Engine) -> np.ndarray | None:
    """Sets an engine's parameters to those of ``pretrained``, and its centers by ``settings.class_map``.

    Collectives: all-gathers ``agree`` and ``status.take_pretrained``.

    Returns:
        The class map, see load_class_map; None without centers.

    Raises:
        JobError: On every rank, if the weights do not fit.
    """
    # Each rank reads the file of its own host; the running statistics of a checkpoint differ between ranks.
    same = {name: array for name, array in pretrained.weights.items() if not name.startswith("aux:")}
    engine.collectives.assert_same_on_all_ranks({"pretrained weights": arrays_digest(same)})
    return engine.collectives.run_on_all_ranks("take_pretrained", lambda: _set_pretrained(settings, engine, pretrained))


def _set_pretrained(settings, engine: Engine, pretrained: Pretrained) -> np.ndarray | None:
    classes, class_map = pretrained.classes, None
    given, own = pretrained.model_format, engine.model_format
    try:
        if given and given._replace(momentum_convention=own.momentum_convention) != own:
            raise ValueError(f"it has {given}, but this backbone {own}: build it with get_model")
        engine.set_weights(pretrained.weights)
        if classes is not None:
            class_map = load_class_map(settings, classes.num_classes)
            engine.memory_bank.load_classes(classes.without_states(), class_map)
    except ValueError as error:
        raise ValueError(f"cannot start from {pretrained.source}: {error}") from None
    if engine.collectives.rank == 0:
        logging.info("starts from the weights in %s%s", pretrained.source, " and class centers" if classes else "")
    return class_map
