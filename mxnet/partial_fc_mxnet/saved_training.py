"""Going on from a checkpoint: at any number of ranks, any batch size, any place of the bank."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

import horovod.mxnet as hvd
import numpy as np

from partial_fc.checkpoint import (
    CheckpointFolder,
    Manifest,
    SavedClasses,
    check_layout,
    read_arrays,
    read_manifest,
    verify_file,
)
from partial_fc.checkpoint.layout import BACKBONE, statistics_file, step_number

from . import backbone_state, collectives
from .checkpointing import LOSS_SCALE


class SavedTraining:
    """A checkpoint whose every byte has been verified.

    Attributes:
        path: its folder.
        manifest: see Manifest.
        class_map: (C,) int64 or None, see MemoryBank.take; set it before ``restore`` to go on with other classes.
    """

    def __init__(self, path: str, manifest: Manifest):
        self.path, self.manifest = path, manifest
        self.class_map: np.ndarray | None = None

    @classmethod
    def open(cls, path: str) -> SavedTraining:
        """Reads the manifest and verifies all files, the ranks dividing them between themselves.

        Collectives: all-gather ``together.checkpoint.verify``.

        Raises:
            JobError: on every rank, where something is missing, damaged, or not a checkpoint; names the file.
        """
        return cls(path, collectives.run_on_all_ranks("checkpoint.verify", lambda: _verified(path)))

    @classmethod
    def newest(cls, folder: CheckpointFolder, warn: Callable[[str], object] = logging.warning) -> SavedTraining | None:
        """The newest complete checkpoint that is whole; None where there is none at all.

        Collectives: all-gather ``checkpoint.newest``, and those of ``open`` for each that is tried.

        Args:
            folder: where they are.
            warn: told on rank 0 of each one that is damaged.

        Raises:
            JobError: on every rank, where there are some and all are damaged: to begin anew is not for us to decide.
        """
        complete = collectives.gather("checkpoint.newest", folder.complete() if hvd.rank() == 0 else None)[0]
        for _, path in complete:
            try:
                return cls.open(path)
            except collectives.JobError as error:
                if hvd.rank() == 0:
                    warn(f"this checkpoint is not gone on from: {error}")
                last = error
        if complete:
            raise collectives.JobError(
                f"no checkpoint in {folder.path} is whole; to begin anew move it away. The oldest: {last}"
            )
        return None

    def weights(self) -> dict[str, np.ndarray]:
        """Parameters, optimizer states and running statistics of the backbone, by name.

        The statistics are those that the rank of this number saved. At another number of ranks they are the mean of
        all, as they are where a model is saved or verified.
        """
        files = [statistics_file(rank) for rank in range(self.manifest.ranks)]
        if self._same_ranks():
            files = [files[hvd.rank()]]
        saved = [read_arrays(os.path.join(self.path, name)) for name in files]
        mean = {name: np.mean([one[name] for one in saved], axis=0, dtype=np.float64) for name in saved[0]}
        arrays = read_arrays(os.path.join(self.path, BACKBONE))
        return {**arrays, **{name: array.astype(np.float32) for name, array in mean.items()}}

    def classes(self) -> SavedClasses:
        """Centers and momentum of all classes, read when they are asked for."""
        return SavedClasses.of_checkpoint(self.path, self.manifest)

    def restore(self, module, train_data) -> None:
        """Puts a module, its bank and its iterator where they were.

        Args:
            module: SampleDistributeModule with parameters and optimizer.
            train_data: its iterator; one without ``restore`` starts from its beginning. With other classes the data
                are others too and start with the next epoch.

        Raises:
            JobError: on every rank, where the checkpoint does not fit the module, bank or data of one.
        """
        collectives.run_on_all_ranks("resume", lambda: self._restore(module, train_data))

    def _restore(self, module, train_data) -> None:
        manifest, bank = self.manifest, module.memory_bank
        try:
            self._check_sizes(module)
            arrays = self.weights()
            backbone_state.set_weights(module._module, arrays)
            backbone_state.set_optimizer(module._module, arrays, manifest.num_update)
            bank.take(self.classes(), self.class_map)
            if self._same_ranks():
                bank.sampler.restore(manifest.rank_states[hvd.rank()].get("sampler"))
            else:
                bank.sampler.restart(manifest.num_update)
            self._restore_progress(module, train_data)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"cannot go on from {self.path}: {error}") from None

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
                "say with --class-map which class is which"
            )

    def _restore_progress(self, module, train_data) -> None:
        state = self.manifest.state
        module.num_update, module.num_epoch = self.manifest.num_update, state.get("num_epoch", 0)
        scale = state.get("loss_scale")
        if module.loss_scale is not None and scale:
            for name in LOSS_SCALE:
                setattr(module.loss_scale, name, scale[name])
        place = state.get("data")
        if place is None or not hasattr(train_data, "restore"):
            return
        if self.class_map is None:
            train_data.restore(place)
        else:
            train_data.restore({**train_data.state(), "epoch": place["epoch"] + 1, "images": 0})
        module.num_epoch = train_data.state()["epoch"]

    def _same_ranks(self) -> bool:
        return self.manifest.ranks == hvd.size()


def _verified(path: str) -> Manifest:
    manifest = read_manifest(path)
    if step_number(os.path.basename(os.path.abspath(path))) not in (None, manifest.num_update):
        raise ValueError(f"{path} has the name of another update than its own, {manifest.num_update}: rename it")
    check_layout(path, manifest)
    for number, (name, entry) in enumerate(sorted(manifest.files.items())):
        if number % hvd.size() == hvd.rank():
            verify_file(path, name, entry, collectives.report_progress)
    return manifest
