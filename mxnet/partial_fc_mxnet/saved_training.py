"""Resuming from a checkpoint, at any number of ranks, with any batch size, and wherever the bank is stored."""

from __future__ import annotations

import logging
from collections.abc import Callable

import horovod.mxnet as hvd
import numpy as np

from partial_fc.checkpoint import CheckpointFolder, Manifest, SavedClasses, verify_share
from partial_fc.checkpoint.backbone import read_backbone

from . import collectives, module_state


class SavedTraining:
    """A checkpoint whose every byte has been verified.

    Attributes:
        path: its folder.
        manifest: see Manifest.
        class_map: (C,) int64 or None, see MemoryBank.take; set it before ``restore`` to resume with other classes.
    """

    def __init__(self, path: str, manifest: Manifest):
        self.path, self.manifest = path, manifest
        self.class_map: np.ndarray | None = None

    @classmethod
    def open(cls, path: str) -> SavedTraining:
        """Reads the manifest and verifies all files, a share on each rank.

        Collectives: all-gather ``together.checkpoint.verify``.

        Raises:
            JobError: On every rank, if a file is missing or damaged, or if this is no checkpoint; names the file.
        """
        rank, size = hvd.rank(), hvd.size()
        manifest = collectives.run_on_all_ranks(
            "checkpoint.verify", lambda: verify_share(path, rank, size, collectives.report_progress)
        )
        return cls(path, manifest)

    @classmethod
    def newest(cls, folder: CheckpointFolder, warn: Callable[[str], object] = logging.warning) -> SavedTraining | None:
        """Opens the newest complete checkpoint that is undamaged; None if there is no complete one.

        Collectives: all-gather ``checkpoint.newest``, and those of ``open`` for each checkpoint that is tried.

        Args:
            folder: with the checkpoints.
            warn: called on rank 0 with a message for each damaged one.

        Raises:
            JobError: On every rank, if all checkpoints are damaged. The user decides whether to start again.
        """
        complete = collectives.broadcast("checkpoint.newest", folder.complete() if hvd.rank() == 0 else None)
        for _, path in complete:
            try:
                return cls.open(path)
            except collectives.JobError as error:
                if hvd.rank() == 0:
                    warn(f"skipped a damaged checkpoint: {error}")
                last = error
        if complete:
            raise collectives.JobError(
                f"all checkpoints in {folder.path} are damaged; to start from update 0, move them to another folder. "
                f"The oldest: {last}"
            )
        return None

    def restore(self, module, train_data) -> None:
        """Restores a module, its memory bank and its iterator.

        Collectives: all-gather ``together.resume``.

        Args:
            module: SampleDistributeModule with parameters and optimizer.
            train_data: its iterator; one without ``restore`` starts from its first batch. With a class map the data
                are different ones, and start with the next epoch.

        Raises:
            JobError: On every rank, if the checkpoint does not fit the module, the bank or the data of one.
        """
        collectives.run_on_all_ranks("resume", lambda: self._restore(module, train_data))

    def _restore(self, module, train_data) -> None:
        manifest, bank, rank, size = self.manifest, module.memory_bank, hvd.rank(), hvd.size()
        try:
            self._check_sizes(module)
            arrays = read_backbone(self.path, manifest, rank, size)
            module_state.set_weights(module, arrays)
            module_state.set_optimizer(module, arrays, manifest.num_update)
            module_state.set_progress(module, manifest.state, manifest.num_update)
            bank.take(SavedClasses.of_checkpoint(self.path, manifest), self.class_map)
            if manifest.ranks == size:
                bank.sampler.restore(manifest.rank_states[rank].get("sampler"))
            else:
                bank.sampler.restart(manifest.num_update)
            self._restore_data(module, train_data)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"cannot resume from {self.path}: {error}") from None

    def _check_sizes(self, module) -> None:
        manifest, own = self.manifest, module.memory_bank.embedding_size
        if manifest.embedding_size != own:
            raise ValueError(
                f"its embedding size is {manifest.embedding_size}, this training's is {own}: "
                f"set embedding_size={manifest.embedding_size}"
            )
        if self.class_map is None and manifest.num_classes != module.num_classes:
            raise ValueError(
                f"it holds {manifest.num_classes} classes, this training has {module.num_classes}: "
                "map them to each other with --class-map"
            )

    def _restore_data(self, module, train_data) -> None:
        position = self.manifest.state.get("data")
        if position is None or not hasattr(train_data, "restore"):
            return
        if self.class_map is not None:
            position = {**train_data.state(), "epoch": position["epoch"] + 1, "images": 0}
        train_data.restore(position)
        module.num_epoch = train_data.state()["epoch"]
