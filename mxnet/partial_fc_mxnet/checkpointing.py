"""Writing checkpoints while the training goes on.

A save goes through these phases: every rank takes a copy of what it holds (the only one that stops the training);
a thread of low priority writes the copy to files aside; a rank that has finished sets RankFlags.CHECKPOINT_WRITTEN,
which is sent with the labels of its next step; after the step in which all ranks have set it they exchange sizes and
hashes; rank 0 writes the manifest, gives the folder its final name, and removes the oldest one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import horovod.mxnet as hvd
import mxnet as mx

from partial_fc.checkpoint import CheckpointFolder, Entry, Manifest, array_chunks, npz_chunks, write_file
from partial_fc.checkpoint.layout import BACKBONE, centers_file, momentum_file, statistics_file
from partial_fc.layer.label_encoding import RankFlags
from partial_fc.utils.memory import free_memory

from . import collectives, module_state
from .layer.center_storage import Piece, empty_arrays
from .ops.host_memory import host_view

Chunks = Callable[[], Iterator]


class CallBackCheckpoint:
    """Saves everything the next update depends on, every so many updates and when the job is to stop.

    Collectives: none in a step. All-reduce ``checkpoint.room``, all-gathers ``together.checkpoint.<phase>`` and
    ``checkpoint.shards`` once a save.

    Args:
        module: SampleDistributeModule, in fit.
        folder: where the checkpoints are, on a disk that all ranks see.
        frequent: updates between saves; 0 for none but the one before stopping.
        notes: gives what else is to be in the checkpoint, at each save; rank 0's is kept, as JSON has it.
        origin: how the training was started, for people who read the manifest; as JSON has it.
        saved_at: the update in the folder that the training goes on from.

    Raises, in a call:
        collectives.Preempted: on every rank, when one was asked to stop and the checkpoint is complete.
        collectives.JobError: on every rank, when one could not write, or when its numbers are not finite.
        OSError: on rank 0, when it could not complete the checkpoint that was written in the background.
    """

    def __init__(
        self,
        module,
        folder: CheckpointFolder,
        frequent: int,
        notes: Callable[[], dict] = dict,
        origin: Mapping[str, Any] | None = None,
        saved_at: int = 0,
    ):
        self.module, self.folder, self.frequent = module, folder, frequent
        self._notes, self._origin = notes, dict(origin or {})
        self._saved_at = saved_at
        self._save: _Save | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint", initializer=_lower_priority)
        self._published: Future | None = None

    def __call__(self, param) -> None:
        flags = self.module.all_rank_flags
        if self._published is not None and self._published.done():
            self._published.result()
        if self._save is not None and (flags & RankFlags.CHECKPOINT_WRITTEN).all():
            self._publish()
        if (flags & RankFlags.STOP_REQUESTED).any():
            self.save(param.num_update)
            raise collectives.Preempted(param.num_update)
        if self.frequent and param.num_update % self.frequent == 0 and param.num_update != self._saved_at:
            self._begin()
        self.module.rank_flags = self._rank_flags()

    def _rank_flags(self) -> RankFlags:
        flags = RankFlags(0)
        if self._save is not None and self._save.written.done():
            flags |= RankFlags.CHECKPOINT_WRITTEN
        if collectives.stop_requested():
            flags |= RankFlags.STOP_REQUESTED
        return flags

    def save(self, num_update: int) -> None:
        """Saves now, unless this update is saved already, and returns when the checkpoint is complete."""
        if num_update != self._saved_at:
            self._begin()
        self._finish()

    def _begin(self) -> None:
        self._finish()
        num_update = self.module.num_update
        self._saved_at = num_update
        # All ranks alike: who has written already meets the others now, who writes in its thread meets them later.
        background = not collectives.largest("checkpoint.room", 0.0 if _copy_fits(self.module.memory_bank) else 1.0)
        make = partial(_Save, self.module, self.folder, self._notes(), self._thread if background else None)
        self._save = collectives.run_on_all_ranks("checkpoint.copy", make)
        if not background:
            self._publish()

    def _finish(self) -> None:
        """Waits for the save that is under way, if there is one."""
        if self._save is not None:
            self._publish()
        collectives.run_on_all_ranks("checkpoint.publish", lambda: self._published and self._published.result())

    def _publish(self) -> None:
        """All ranks agree that they have written; rank 0 goes on in its thread."""
        save, self._save = self._save, None
        save.waited_for = True
        entries = collectives.run_on_all_ranks("checkpoint.write", save.written.result)
        shards = collectives.gather("checkpoint.shards", (save.shard, entries, save.rank_state))
        if hvd.rank() == 0:
            manifest = save.manifest(shards, self._origin)
            self._published = self._thread.submit(self._complete, manifest)

    def _complete(self, manifest: Manifest) -> None:
        self.folder.commit(manifest.num_update, manifest)
        self.folder.prune()


class _Save:
    """One checkpoint of this rank, from the copy to what is in its files.

    Args:
        module, folder: see CallBackCheckpoint.
        notes: see there.
        thread: writes a copy; None writes the files now, from where the numbers are.

    Attributes:
        written: Future of {file: Entry}.
        shard: (first class, behind the last) of this rank.
        rank_state: what only this rank has and no array holds.
        waited_for: set it when the training stands still until the files are written.
    """

    def __init__(self, module, folder: CheckpointFolder, notes: dict, thread: ThreadPoolExecutor | None):
        bank = module.memory_bank
        self.num_update, self.embedding_size = module.num_update, bank.embedding_size
        self.shard = (bank.class_start, bank.class_start + bank.num_local)
        self.rank_state = {"sampler": bank.sampler.state()}
        self._state = {**module_state.progress(module), **notes}
        self._path = folder.begin(self.num_update)
        self._files = _files(module, copied=thread is not None)
        self.waited_for = thread is None
        if thread is not None:
            self.written = thread.submit(self._write)
        else:
            self.written = Future()
            with bank.centers.sequential_access():
                self.written.set_result(self._write())

    def manifest(self, shards: list, origin: dict) -> Manifest:
        """That of all ranks' (shard, entries, rank_state)."""
        files: dict[str, Entry] = {}
        for _, entries, _ in shards:
            files.update(entries)
        return Manifest(
            num_update=self.num_update,
            num_classes=shards[-1][0][1],
            embedding_size=self.embedding_size,
            ranks=len(shards),
            shards=[shard for shard, _, _ in shards],
            files=files,
            state=self._state,
            rank_states=[state for _, _, state in shards],
            origin=origin,
        )

    def _write(self) -> dict[str, Entry]:
        entries = {}
        while self._files:  # each copy is let go of when it is written
            name, chunks = self._files.pop()
            try:
                entries[name] = write_file(os.path.join(self._path, name), chunks(), self._alive)
            except FloatingPointError as error:
                raise ValueError(f"{name} of update {self.num_update} is not saved: {error}") from None
        return entries

    def _alive(self) -> None:
        # While the training goes on it is to show signs of life of its own.
        if self.waited_for:
            collectives.report_progress()


def _files(module, copied: bool) -> list[tuple[str, Chunks]]:
    """The files of this rank: their names and what makes their content."""
    rank, bank = module.rank, module.memory_bank
    own = module_state.statistics(module)
    files: list[tuple[str, Chunks]] = [(statistics_file(rank), lambda: npz_chunks(own))]
    if rank == 0:
        backbone = module_state.parameters(module)
        files.append((BACKBONE, lambda: npz_chunks(backbone)))
    for name, field in zip((centers_file(rank), momentum_file(rank)), Piece._fields):
        read = mx.nd.NDArray.asnumpy if copied else host_view
        with empty_arrays(bank.num_local):
            rows = [read(getattr(piece, field)) for piece in bank.centers.pieces]
        files.append((name, lambda rows=rows: array_chunks(rows)))
    return files


def _copy_fits(bank) -> bool:
    """Whether the host has room for a second copy of its ranks' centers and momentum, with as much to spare."""
    if bank.centers.files:
        return False
    ranks = hvd.local_size() if hvd.is_initialized() else 1
    return 2 * ranks * 8 * bank.num_local * bank.embedding_size < free_memory()


def _lower_priority() -> None:
    """Lets the training have the cores first; Linux has priorities of single threads."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
