"""Resuming from a checkpoint, at any number of ranks, with any batch size, and wherever the bank is stored."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from partial_fc.checkpoint import CheckpointFolder, Manifest, ModelFormat, SavedClasses, verify_share
from partial_fc.checkpoint.backbone import read_backbone
from partial_fc.data.cursor import Position
from partial_fc.data.training_data import TrainingData
from partial_fc.distributed.collectives import Collectives
from partial_fc.distributed.errors import JobError

from .engine import Engine
from .foreign_checkpoint import ForeignCheckpoint, ReadForeign
from .loop import LoopState, own_loop


class SavedTraining:
    """A checkpoint whose every byte has been verified.

    Attributes:
        path: its folder.
        manifest: see Manifest.
        model_format: see ModelFormat.
        class_map: (C,) int64 to resume with other classes, see CenterBank.load_classes; or None.
        foreign: what another program has written, in place of files by the manifest; or None.
    """

    def __init__(
        self,
        path: str,
        manifest: Manifest,
        class_map: np.ndarray | None = None,
        foreign: ForeignCheckpoint | None = None,
    ):
        self.path, self.manifest, self.model_format = path, manifest, ModelFormat.of(path, manifest)
        self.class_map, self.foreign = class_map, foreign

    def with_classes(self, class_map: np.ndarray) -> SavedTraining:
        """Returns this checkpoint for a training with other classes."""
        return SavedTraining(self.path, self.manifest, class_map, self.foreign)

    @property
    def position(self) -> Position:
        """Position in the data from which to continue.

        With a class map the data are different ones, and start with the next epoch that has not begun.
        """
        position = self.manifest.state.get("data") or {"epoch": 0, "images": 0}
        epoch, images = position["epoch"], position["images"]
        return (epoch, images) if self.class_map is None or not images else (epoch + 1, 0)

    @classmethod
    def find(cls, path: str, collectives: Collectives, read_foreign: ReadForeign, gradient_acc: int) -> SavedTraining:
        """Opens a checkpoint of this program or of another.

        Collectives: all-gather ``status.checkpoint.read``; those of ``open`` for one of this program.

        Args:
            path, collectives: see ``open``.
            read_foreign, gradient_acc: see Framework.read_checkpoint.

        Raises:
            JobError: On every rank, if a file is missing or damaged, or if this is no checkpoint; names the file.
        """
        foreign = collectives.run_on_all_ranks("checkpoint.read", lambda: read_foreign(path, gradient_acc))
        return cls.open(path, collectives) if foreign is None else cls(path, foreign.manifest, foreign=foreign)

    @classmethod
    def open(cls, path: str, collectives: Collectives) -> SavedTraining:
        """Reads the manifest and verifies all files, a share on each rank.

        Collectives: all-gather ``status.checkpoint.verify``.

        Raises:
            JobError: On every rank, if a file is missing or damaged, or if this is no checkpoint; names the file.
        """
        rank, size = collectives.rank, collectives.size
        return collectives.run_on_all_ranks(
            "checkpoint.verify", lambda: cls(path, verify_share(path, rank, size, collectives.report_progress))
        )

    @classmethod
    def newest(
        cls, folder: CheckpointFolder, collectives: Collectives, warn: Callable[[str], object] = logging.warning
    ) -> SavedTraining | None:
        """Opens the newest complete checkpoint that is undamaged; None if there is no complete one.

        Collectives: all-gather ``checkpoint.newest``, and those of ``open`` for each checkpoint that is tried.

        Args:
            folder: with the checkpoints.
            collectives: between the ranks.
            warn: called on rank 0 with a message for each damaged one.

        Raises:
            JobError: On every rank, if all checkpoints are damaged. The user decides whether to start again.
        """
        complete = collectives.broadcast("checkpoint.newest", folder.complete() if collectives.rank == 0 else None)
        for _, path in complete:
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

    def restore(self, engine: Engine, train_data: TrainingData | None, loop: LoopState | None = None) -> None:
        """Restores an engine, its memory bank, its data, and how far the training is in them.

        Collectives: all-gather ``status.resume``.

        Args:
            engine: with parameters and optimizer.
            train_data: its data; one without ``restore`` starts from its first batch. With a class map the data
                are different ones, and start with the next epoch that has not begun.
            loop: of the training; None takes that of ``engine.fit``.

        Raises:
            JobError: On every rank, if the checkpoint does not fit the engine, the bank or the data of one.
        """
        state = loop or own_loop(engine)
        engine.collectives.run_on_all_ranks("resume", lambda: self._restore(engine, train_data, state))

    def _restore(self, engine: Engine, train_data, loop: LoopState) -> None:
        manifest, bank = self.manifest, engine.memory_bank
        rank, size = engine.collectives.rank, engine.collectives.size
        try:
            self._check_sizes(engine)
            foreign = self.foreign
            arrays = foreign.backbone(rank, size) if foreign else read_backbone(self.path, manifest, rank, size)
            engine.restore(arrays, manifest.num_update)
            # What checkpointing.progress returned.
            engine.num_update, loop.num_epoch = manifest.num_update, manifest.state.get("num_epoch", 0)
            if engine.loss_scale is not None and manifest.state.get("loss_scale"):
                engine.loss_scale.restore(manifest.state["loss_scale"])
            classes = foreign.classes if foreign else SavedClasses.of_checkpoint(self.path, manifest)
            bank.load_classes(classes, self.class_map)
            if manifest.ranks == size and not foreign:
                bank.sampler.restore(manifest.rank_states[rank].get("sampler"))
            else:
                bank.sampler.restart(manifest.num_update)
            self._restore_data(train_data, loop)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"cannot resume from {self.path}: {error}") from None

    def _check_sizes(self, engine: Engine) -> None:
        if engine.model_format != self.model_format:
            raise ValueError(f"it has {self.model_format}, but the engine was built with {engine.model_format}")
        manifest, own = self.manifest, engine.memory_bank.embedding_size
        if manifest.embedding_size != own:
            raise ValueError(
                f"its embedding size is {manifest.embedding_size}, this training's is {own}: "
                f"set embedding_size={manifest.embedding_size}"
            )
        if self.class_map is None and manifest.num_classes != engine.num_classes:
            raise ValueError(
                f"it holds {manifest.num_classes} classes, this training has {engine.num_classes}: set "
                f"num_classes={manifest.num_classes}, or map them to each other with --class-map"
            )

    def _restore_data(self, train_data, loop: LoopState) -> None:
        position = self.manifest.state.get("data")
        if position is None or not hasattr(train_data, "restore"):
            return
        if self.class_map is not None or self.foreign:
            epoch, images = self.position
            position = {**train_data.state(), "epoch": epoch, "images": images}
        train_data.restore(position)
        # Also the position: a training may be asked to stop before it reads a batch.
        restored = train_data.state()
        loop.data_state, loop.num_epoch = restored, restored["epoch"]
