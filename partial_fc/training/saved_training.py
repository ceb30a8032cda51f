"""What a training starts from: new weights, the weights of another training, or a checkpoint.

`find_checkpoint` decides. A checkpoint is a `SavedTraining`, which restores all state, at any number of ranks, with any
batch size, and wherever the bank is stored. `Pretrained` has only weights and, with a class map, class centers; the
training then begins with update 0.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from partial_fc.checkpoint import (
    CheckpointFolder,
    Manifest,
    ModelFormat,
    SavedClasses,
    check_finite,
    read_class_map,
    verify_share,
)
from partial_fc.checkpoint.backbone import final_weights, read_backbone
from partial_fc.checkpoint.layout import MANIFEST
from partial_fc.checkpoint.model_format import MXNET
from partial_fc.checkpoint.mxnet_params import named_arrays
from partial_fc.data.cursor import Position
from partial_fc.data.head_data import JobData
from partial_fc.distributed.collectives import Collectives
from partial_fc.distributed.consistency import arrays_digest
from partial_fc.distributed.errors import JobError, errors_of_head
from partial_fc.utils.options import options_of

from .engine import Engine
from .loop import LoopState, engine_loop
from .run_folder import CHECKPOINTS, begun_by, wait_for_earlier_attempt

AUTO, SAME, MEAN = "auto", "same", "mean"  # values of the settings resume, class_map and new_centers
RUN = "PARTIAL_FC_RUN"  # environment variable with the name that run.sh gives to a run and its restarts


class ForeignCheckpoint(NamedTuple):
    """A checkpoint of another program, as the framework reads it."""

    # Sizes and state, without files. Its position in the data may lack the keys for the order of the images,
    # and then counts in this training's order.
    manifest: Manifest
    backbone: Callable[[int, int], dict[str, np.ndarray]]  # (rank, number of ranks) -> arrays, as `read_backbone`
    classes: SavedClasses  # centers and the states of their optimizer
    messages: list[str]  # log lines about what it lacks


@dataclass(frozen=True)
class Pretrained:
    """Weights and, if requested, class centers. Raises ValueError if a weight is not finite."""

    source: str  # path, for messages
    weights: dict[str, np.ndarray]  # ``arg:<name>`` and ``aux:<name>`` -> float32 array
    model_format: ModelFormat | None  # None if the file does not say; the network then keeps its own
    classes: SavedClasses | None = None  # None if not requested

    def __post_init__(self) -> None:
        check_finite(self.source, self.weights)


ReadFiles = Callable[[str, bool], Pretrained | None]  # Framework.read_pretrained
ReadForeign = Callable[[str, int], ForeignCheckpoint | None]  # Framework.read_checkpoint


@dataclass
class SavedTraining:
    """A checkpoint in which every byte has been verified."""

    path: str  # folder of the checkpoint
    manifest: Manifest
    class_map: np.ndarray | None = None  # (C,) int64, see CenterBank.load_classes; None for the same classes
    foreign: ForeignCheckpoint | None = None  # content of another program's checkpoint; None for one of this program
    model_format: ModelFormat = field(init=False)

    def __post_init__(self) -> None:
        self.model_format = ModelFormat.of(self.path, self.manifest)

    @property
    def position(self) -> Position:
        """Position in the data at which the training continues.

        With a class map the data differ, and start with the first epoch that has not begun.
        """
        position = self.manifest.state.get("data") or {"epoch": 0, "images": 0}
        epoch, images = position["epoch"], position["images"]
        return (epoch, images) if self.class_map is None or not images else (epoch + 1, 0)

    @classmethod
    def find(cls, path: str, collectives: Collectives, read_foreign: ReadForeign, gradient_acc: int) -> SavedTraining:
        """Opens a checkpoint of this program or of another one.

        Collectives: all-gather ``status.checkpoint.read``; those of ``open`` for a checkpoint of this program.

        Args:
            path, collectives: see ``open``.
            read_foreign, gradient_acc: see Framework.read_checkpoint.

        Raises:
            JobError: On every rank, if a file, which the message names, is missing or damaged, or no checkpoint.
        """
        foreign = collectives.run_on_all_ranks("checkpoint.read", lambda: read_foreign(path, gradient_acc))
        return cls.open(path, collectives) if foreign is None else cls(path, foreign.manifest, foreign=foreign)

    @classmethod
    def open(cls, path: str, collectives: Collectives) -> SavedTraining:
        """Reads the manifest and verifies all files, a share on each rank.

        Collectives: all-gather ``status.checkpoint.verify``.

        Raises:
            JobError: On every rank, if a file, which the message names, is missing or damaged, or no checkpoint.
        """
        rank, size = collectives.rank, collectives.size
        return collectives.run_on_all_ranks(
            "checkpoint.verify", lambda: cls(path, verify_share(path, rank, size, collectives.report_progress))
        )

    @classmethod
    def newest(
        cls, folder: CheckpointFolder, collectives: Collectives, warn: Callable[[str], object] = logging.warning
    ) -> SavedTraining | None:
        """Opens the newest undamaged checkpoint; returns None if the folder has no complete checkpoint.

        Collectives: all-gather ``checkpoint.newest``, and those of ``open`` for each checkpoint that is tried.

        Args:
            folder: folder of the checkpoints.
            collectives: between the ranks.
            warn: called on rank 0 with a message for each damaged checkpoint.

        Raises:
            JobError: On every rank, if all checkpoints are damaged. The user decides whether to start again.
        """
        complete = collectives.broadcast("checkpoint.newest", folder.complete() if collectives.rank == 0 else None)
        for _, path in complete:  # the same list on all ranks, because opening one is a collective
            try:
                return cls.open(path, collectives)
            except JobError as error:
                if collectives.rank == 0:
                    warn(f"skipped a damaged checkpoint: {error}")
                last = error
        if complete:
            raise JobError(
                f"all checkpoints in {folder.path} are damaged; to start from update 0, move them to another folder. "
                f"The oldest: {last}"
            )
        return None

    def restore(self, engine: Engine, train_data: JobData | None, loop: LoopState | None = None) -> None:
        """Restores the engine, its memory bank, the position in the data and the state of the loop.

        Collectives: all-gather ``status.resume``.

        Args:
            engine: engine with parameters and optimizer.
            train_data: training data; an iterator without ``restore`` starts from its first batch.
            loop: state of the training's loop; None for ``engine.fit``'s own.

        Raises:
            JobError: On every rank, if the checkpoint does not fit the engine, the bank or the data of one rank.
        """
        state = loop or engine_loop(engine)

        def restore() -> None:
            try:
                self._restore_engine(engine)
                state.num_epoch = self.manifest.state.get("num_epoch", 0)
                self._restore_data(train_data, state)
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"cannot resume from {self.path}: {error}") from None

        engine.collectives.run_on_all_ranks("resume", restore)

    def _restore_engine(self, engine: Engine) -> None:
        manifest, foreign, bank = self.manifest, self.foreign, engine.memory_bank
        rank, size = engine.collectives.rank, engine.collectives.size
        if engine.model_format != self.model_format:
            raise ValueError(f"it has {self.model_format}, but the engine was built with {engine.model_format}")
        if manifest.embedding_size != bank.embedding_size:
            raise ValueError(
                f"its embedding size is {manifest.embedding_size}, this training's is {bank.embedding_size}: "
                f"set embedding_size={manifest.embedding_size}"
            )
        if self.class_map is None and manifest.num_classes != engine.num_classes:
            raise ValueError(
                f"it holds {manifest.num_classes} classes, this training has {engine.num_classes}: set "
                f"num_classes={manifest.num_classes}, or map them to each other with --class-map"
            )
        _, *heads = engine.banks  # without the first, whose name may change
        if set(manifest.heads) != set(heads):
            saved, present = (", ".join(sorted(names)) or "none" for names in (manifest.heads, heads))
            raise ValueError(
                f"its heads after the first are {saved}, but this training's are {present}: set heads to the same "
                "names, or take the weights alone with --pretrained"
            )
        arrays = foreign.backbone(rank, size) if foreign else read_backbone(self.path, manifest, rank, size)
        engine.restore(arrays, manifest.num_update)
        engine.num_update = manifest.num_update
        if engine.loss_scale is not None and manifest.state.get("loss_scale"):
            engine.loss_scale.restore(manifest.state["loss_scale"])
        for head, bank in engine.banks.items():
            classes = foreign.classes if foreign else SavedClasses.of_checkpoint(self.path, manifest, head)
            with errors_of_head(head):
                bank.load_classes(classes, None if head else self.class_map)
            if manifest.ranks == size and not foreign:
                bank.sampler.restore(manifest.of_head(head).rank_states[rank].get("sampler"))
            else:  # another number of ranks divides the classes differently, so saved generator states do not apply
                bank.sampler.restart(manifest.num_update)

    def _restore_data(self, train_data: JobData | None, loop: LoopState) -> None:
        position = self.manifest.state.get("data")
        if position is None or train_data is None or not hasattr(train_data, "restore"):
            return
        if self.class_map is not None or self.foreign:
            # Other data, or another program's order of the images: only the counts are taken over.
            epoch, images = self.position
            position = {**train_data.state(), "epoch": epoch, "images": images}
        train_data.restore(position)
        # The loop updates its position with each batch, but a training may be asked to stop before it reads one.
        loop.data_state = train_data.state()
        loop.num_epoch = loop.data_state["epoch"]


class ResumePlan(NamedTuple):
    """How a training starts."""

    checkpoint: SavedTraining | None  # checkpoint to resume from
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

    def model_format(self, pretrained: Pretrained | None, new_format: ModelFormat) -> ModelFormat:
        """Returns the format of what the training starts from; ``new_format`` is the format of a new training."""
        if self.checkpoint:
            return self.checkpoint.model_format
        if pretrained and pretrained.model_format:  # weights without momentum
            return pretrained.model_format._replace(momentum_convention=new_format.momentum_convention)
        return new_format


NEW_WEIGHTS = ResumePlan(None, False, False, [])


def checkpoint_folder(settings, folder: str) -> CheckpointFolder:
    """Returns the checkpoints in the output folder of a training."""
    return CheckpointFolder(os.path.join(folder, CHECKPOINTS), options_of(settings, "checkpoint_options").kept)


def writes_checkpoints(settings) -> bool:
    """Returns whether a training writes checkpoints at intervals."""
    return bool(settings["checkpoint_every"] or options_of(settings, "checkpoint_options").minutes)


def find_checkpoint(settings, folder: str, collectives: Collectives, read_foreign: ReadForeign) -> ResumePlan:
    """Finds the checkpoint to resume from, and returns how the training starts.

    A restart by run.sh resumes in the folder that its run owns, whatever ``resume`` says.

    Collectives: all-gather ``restarted``; after a restart ``status.earlier_attempt``; those of SavedTraining.newest or
    find; all-gather ``status.class_map``.

    Args:
        settings: the training's; ``resume``, ``pretrained``, ``class_map`` and ``new_centers`` are read.
        folder: output folder, on rank 0's host.
        collectives, read_foreign: see Collectives and Framework.read_checkpoint.

    Raises:
        JobError: On every rank, if the checkpoint does not exist or is damaged.
    """
    checkpoints, messages = checkpoint_folder(settings, folder), list[str]()
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
    if checkpoint is None:
        if restarted or settings.resume:
            messages.append(f"no checkpoint to resume from in {checkpoints.path}: training starts from update 0")
        return ResumePlan(None, False, restarted, messages, settings.pretrained)
    real, parent = os.path.realpath, os.path.dirname(os.path.abspath(checkpoint.path))
    in_folder = real(parent) == real(checkpoints.path)
    # A checkpoint that a restart finds in the output folder has the new classes already.
    if settings.class_map and real(checkpoint.path) == real(settings.resume):
        num_saved = checkpoint.manifest.num_classes
        class_map = collectives.run_on_all_ranks("class_map", lambda: load_class_map(settings, num_saved))
        checkpoint = replace(checkpoint, class_map=class_map)
    elif settings.new_centers == MEAN:
        messages.append("new_centers is ignored: the class centers come from the checkpoint")
    return ResumePlan(checkpoint, in_folder, restarted or in_folder, messages)


def load_class_map(settings, num_saved: int) -> np.ndarray:
    """Returns the class map (C,) int64 that the setting ``class_map`` names, for ``num_saved`` saved classes.

    Raises OSError or ValueError if the file cannot be read, or the map does not fit the classes.
    """
    if settings.class_map != SAME:
        return read_class_map(settings.class_map, settings.num_classes, num_saved)
    if num_saved < settings.num_classes:
        raise ValueError(
            f"class_map is {SAME!r}, but the saved centers belong to {num_saved} classes and this training has "
            f"{settings.num_classes}: give a class map, see partial-fc checkpoints map"
        )
    return np.arange(settings.num_classes)


def read_pretrained(path: str, with_classes: bool, collectives: Collectives, read_files: ReadFiles) -> Pretrained:
    """Reads the weights of a backbone and, if requested, class centers.

    Collectives: those of SavedTraining.open for a checkpoint, all-gather ``status.pretrained``.

    Args:
        path: a checkpoint's folder, or a path for `pretrained_from_files`.
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
        return Pretrained(path, final_weights(arrays), saved.model_format, classes)

    return collectives.run_on_all_ranks("pretrained", read)


def pretrained_from_files(path: str, with_classes: bool, read_files: ReadFiles) -> Pretrained:
    """Reads a file of the framework, or MXNet's ``.params`` file and the ``<rank>_centers.param`` beside it.

    ``path`` is the file, or a folder that contains it and no other ``.params`` file. Raises OSError or ValueError,
    which names the file, if one is missing or damaged.
    """
    pretrained = read_files(path, with_classes)
    if pretrained is not None:
        return pretrained
    if os.path.isdir(path):
        names = [name for name in os.listdir(path) if name.endswith(".params")]
        if len(names) > 1:
            raise ValueError(f"{path} contains several .params files: give the path of one with --pretrained")
        if not names:
            raise ValueError(
                f"{path} contains neither a checkpoint nor weights: give --pretrained the path of a checkpoint or a "
                ".params file, or, with the PyTorch trainer, of a state_dict such as backbone.pth"
            )
        path = os.path.join(path, names[0])
    elif not os.path.isfile(path):
        raise FileNotFoundError(f"{path} does not exist: --pretrained takes a checkpoint's folder or a .params file")
    try:
        arrays = named_arrays(path)
    except ValueError as error:
        raise ValueError(f"cannot read the parameters in {path}: {error}") from None
    weights = {name: array.astype(np.float32) for name, array in arrays.items()}
    return Pretrained(path, weights, MXNET, SavedClasses.of_original(os.path.dirname(path)) if with_classes else None)


def take_pretrained(pretrained: Pretrained, settings, engine: Engine) -> np.ndarray | None:
    """Sets an engine's parameters to the pretrained ones, and its centers by ``settings.class_map``.

    Collectives: all-gathers ``agree`` and ``status.take_pretrained``.

    Returns:
        The class map, see load_class_map; None without centers.

    Raises:
        JobError: On every rank, if the weights do not fit.
    """
    # Each host may have a different file. Running statistics are not compared, because they differ by rank.
    same = {name: array for name, array in pretrained.weights.items() if not name.startswith("aux:")}
    engine.collectives.assert_same_on_all_ranks({"pretrained weights": arrays_digest(same)})

    def take() -> np.ndarray | None:
        classes, class_map = pretrained.classes, None
        saved_format, own_format = pretrained.model_format, engine.model_format
        try:
            if saved_format and saved_format[:2] != own_format[:2]:  # all but the momentum, which is not taken
                raise ValueError(f"it has {saved_format}, but this backbone {own_format}: build it with get_model")
            engine.set_weights(pretrained.weights)
            if classes is not None:
                class_map = load_class_map(settings, classes.num_classes)
                engine.memory_bank.load_classes(classes.without_states(), class_map)
        except ValueError as error:
            raise ValueError(f"cannot start from {pretrained.source}: {error}") from None
        if engine.collectives.rank == 0:
            logging.info("starts from the weights in %s%s", pretrained.source, " and class centers" if classes else "")
        return class_map

    return engine.collectives.run_on_all_ranks("take_pretrained", take)
