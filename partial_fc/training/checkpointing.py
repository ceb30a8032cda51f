"""Writing checkpoints in the background of a training.

The phases of a save:
    1. Every rank copies its state. Only this phase blocks training.
    2. A thread of low priority writes the copy to files in a temporary folder.
    3. A rank that has written its files sets RankFlags.CHECKPOINT_WRITTEN, which is sent with the labels of its next
       step.
    4. After the step in which all ranks have set the flag, the ranks exchange sizes and hashes.
    5. Rank 0 writes the manifest, renames the folder and removes the oldest checkpoint.
"""

import copy
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from time import monotonic
from typing import Any

from partial_fc.checkpoint import CheckpointFolder, Entry, Manifest, array_chunks, npz_chunks, write_file
from partial_fc.checkpoint.layout import BACKBONE, center_file, statistics_file
from partial_fc.distributed.errors import Preempted
from partial_fc.layer.label_encoding import RankFlags
from partial_fc.utils.memory import free_memory
from partial_fc.utils.staging import opened_folder
from partial_fc.utils.text import amount

from .engine import Engine
from .loop import LoopState, engine_loop

Chunks = Callable[[], Iterator]

UPDATES = 2000  # default number of updates between checkpoints on CPUs
# Defaults on GPUs: minimum minutes between checkpoints, a usual file system's speed per rank, and the fraction of the
# time that writing checkpoints at this speed may take.
MINUTES, BYTES_PER_SECOND, SHARE = 10.0, 1e9, 0.02


class CallBackCheckpoint:
    """Saves all state on which the next update depends, at intervals and when the job is asked to stop.

    Collectives: none in a step without a save. Each save: all-reduce ``checkpoint.memory``, all-gathers
    ``status.checkpoint.<phase>`` and ``checkpoint.shards``.

    Args:
        engine: engine in training.
        folder: folder of the checkpoints, on a disk that all ranks see.
        frequent: updates between saves; 0 saves none by updates; -1 chooses by the device, see suitable_interval.
        extra_state: called at each save; returns further state for the checkpoint, as JSON. Rank 0's is saved.
        origin: settings and versions of the training, as JSON, for people who read the manifest.
        saved_at: update of the checkpoint in ``folder`` that the training resumes from.
        loop: state of the training's loop; None for ``engine.fit``'s own.
        minutes: minutes between saves, by rank 0's clock; 0 saves none by time.

    Raises, in a call:
        Preempted: On every rank, when one was asked to stop and the checkpoint is complete.
        JobError: On every rank, if one cannot write, or its numbers are not finite.
        OSError: On rank 0, if it cannot complete the checkpoint written in the background.
    """

    def __init__(
        self,
        engine: Engine,
        folder: CheckpointFolder,
        frequent: int,
        extra_state: Callable[[], dict] = dict,
        origin: Mapping[str, Any] | None = None,
        saved_at: int = 0,
        loop: LoopState | None = None,
        minutes: float = 0,
    ):
        self.engine, self.folder = engine, folder
        if frequent < 0:
            size = _bank_bytes(engine)
            frequent, minutes = suitable_interval(engine.on_gpu, size, minutes)
            every = [f"{frequent} updates"] * bool(frequent) + [f"{minutes:.3g} minutes"] * bool(minutes)
            logging.info("checkpoints every %s (%s of centers and states a rank)", " and ".join(every), amount(size))
        self.frequent, self.minutes = frequent, minutes
        self._loop = loop or engine_loop(engine)
        self._extra_state, self._origin = extra_state, dict(origin or {})
        self._saved_at, self._begun_at = saved_at, monotonic()
        self._pending: _PendingCheckpoint | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint", initializer=_lower_priority)
        self._published: Future | None = None

    def __call__(self, param) -> None:
        """Starts, completes or publishes a checkpoint when it is due, and stops the training when asked to."""
        # The flags came with the labels of the last step: all ranks see the same ones and decide alike, without a
        # collective of their own.
        flags = self.engine.all_rank_flags
        if self._published is not None and self._published.done():
            self._published.result()  # raises an error of the thread
        if self._pending is not None and (flags & RankFlags.CHECKPOINT_WRITTEN).all():
            self._publish()
        if (flags & RankFlags.STOP_REQUESTED).any():
            self.save(param.num_update)
            raise Preempted(param.num_update)
        due = self.frequent and param.num_update % self.frequent == 0 or (flags & RankFlags.CHECKPOINT_DUE).any()
        if due and param.num_update != self._saved_at:
            self._begin()
        own_flags = RankFlags(0)  # the next step sends them to all ranks
        if self._pending is not None and self._pending.written.done():
            own_flags |= RankFlags.CHECKPOINT_WRITTEN
        if self.engine.collectives.stop_requested():
            own_flags |= RankFlags.STOP_REQUESTED
        if self.minutes and self._pending is None and self.engine.collectives.rank == 0:
            if monotonic() - self._begun_at >= 60 * self.minutes:
                own_flags |= RankFlags.CHECKPOINT_DUE
        self.engine.rank_flags = own_flags

    def save(self, num_update: int) -> None:
        """Saves now, unless this update is saved already, and returns when the checkpoint is complete."""
        if num_update != self._saved_at:
            self._begin()
        self._finish()

    def _begin(self) -> None:
        self._finish()
        engine, collectives = self.engine, self.engine.collectives
        self._saved_at, self._begun_at = engine.num_update, monotonic()
        # All ranks decide alike: without a thread they exchange hashes now, and with one in a later step. A copy takes
        # as much memory as the bank; the host must have twice as much.
        needed = 2 * collectives.local_size * _bank_bytes(engine)
        in_files = any(bank.in_files for bank in engine.banks.values())
        copy_fits = not in_files and needed < free_memory()
        background = not collectives.max("checkpoint.memory", 0.0 if copy_fits else 1.0)
        # A copy, because the training goes on before the manifest is written.
        state = copy.deepcopy({**training_state(engine, self._loop), **self._extra_state()})
        begin = partial(_PendingCheckpoint, engine, self.folder, state, self._thread if background else None)
        self._pending = collectives.run_on_all_ranks("checkpoint.copy", begin)
        if not background:
            self._publish()

    def _finish(self) -> None:
        """Waits for the current save, if there is one."""
        if self._pending is not None:
            self._publish()
        self.engine.collectives.run_on_all_ranks(
            "checkpoint.publish", lambda: self._published and self._published.result()
        )

    def _publish(self) -> None:
        """Exchanges sizes and hashes of the written files; rank 0 then completes the checkpoint in its thread."""
        save, self._pending = self._pending, None
        assert save is not None, "no save has begun"
        save.blocks_training = True  # if its files are not written yet, the training waits for them here
        collectives = self.engine.collectives
        entries = collectives.run_on_all_ranks("checkpoint.write", save.written.result)
        shards = collectives.gather_object("checkpoint.shards", (save.shards, entries, save.rank_state))
        if collectives.rank == 0:
            manifest = save.manifest(shards, self._origin)

            def complete() -> None:
                self.folder.commit(manifest.num_update, manifest)
                self.folder.prune()

            self._published = self._thread.submit(complete)


class _PendingCheckpoint:
    """This rank's part of a checkpoint that is being written.

    Args:
        engine, folder: see CallBackCheckpoint.
        state: state of the training, as JSON.
        thread: writes a copy; None writes the files now, without a copy.

    Attributes:
        written: Future of {file: Entry}.
        shards: (first class, last class + 1) of this rank for each head, by the names of Engine.banks.
        rank_state: this rank's state, except arrays.
        blocks_training: whether the training waits for the files.
    """

    def __init__(self, engine: Engine, folder: CheckpointFolder, state: dict, thread: ThreadPoolExecutor | None):
        banks = engine.banks
        self.num_update, self.embedding_size = engine.num_update, engine.memory_bank.embedding_size
        self.shards = {name: (bank.class_start, bank.class_start + bank.num_local) for name, bank in banks.items()}
        samplers = {name: bank.sampler.state() for name, bank in banks.items()}
        self.rank_state: dict[str, Any] = {"sampler": samplers.pop("")}
        if samplers:
            self.rank_state["heads"] = samplers
        self.blocks_training = thread is None
        self._state, self._path = state, folder.begin(engine.num_update)
        self._files = _files(engine, copied=thread is not None)
        self._report_progress = engine.collectives.report_progress
        if thread is not None:
            self.written = thread.submit(self._write)
        else:
            self.written = Future()
            with ExitStack() as stack:
                for bank in banks.values():
                    stack.enter_context(bank.sequential_access())
                self.written.set_result(self._write())

    def manifest(self, shards: list, origin: dict) -> Manifest:
        """Makes the manifest from (shards, entries, rank_state) of all ranks."""
        files: dict[str, Entry] = {}
        for _, entries, _ in shards:
            files.update(entries)
        by_head = {name: [of_rank[name] for of_rank, _, _ in shards] for name in self.shards}
        of_first = by_head.pop("")
        for name, of_head in by_head.items():
            self._state["heads"][name]["shards"] = of_head
        return Manifest(
            num_update=self.num_update,
            num_classes=of_first[-1][1],
            embedding_size=self.embedding_size,
            ranks=len(shards),
            shards=of_first,
            files=files,
            state=self._state,
            rank_states=[state for _, _, state in shards],
            origin=origin,
        )

    def _write(self) -> dict[str, Entry]:
        """Writes the files of this rank."""
        entries = {}
        with opened_folder(self._path) as opened:
            while self._files:  # frees each copy when it is written
                name, chunks = self._files.pop()
                try:
                    entries[name] = write_file(os.path.join(opened, name), chunks(), self._report_when_blocking)
                except FloatingPointError as error:
                    raise ValueError(f"{name} of update {self.num_update} is not saved: {error}") from None
        return entries

    def _report_when_blocking(self) -> None:
        if self.blocks_training:  # otherwise this thread would hide that the training has stalled
            self._report_progress()


def training_state(engine: Engine, loop: LoopState) -> dict[str, Any]:
    """Returns counters, position in the data, loss scale, model format and widths of the centers as JSON."""
    engine.wait_for_update()  # which may change the loss scale
    widths = {name: {"center_widths": dict(bank.widths)} for name, bank in engine.banks.items()}
    return {
        "num_update": engine.num_update,
        "num_epoch": loop.num_epoch,
        "data": loop.data_state,
        "loss_scale": engine.loss_scale and engine.loss_scale.state(),
        "conventions": engine.model_format.to_json(),
        **widths.pop(""),
        **({"heads": widths} if widths else {}),
    }


def _files(engine: Engine, copied: bool) -> list[tuple[str, Chunks]]:
    """Returns the name of each of this rank's files, and a function that yields its content."""
    rank = engine.collectives.rank
    statistics = engine.statistics()
    files: list[tuple[str, Chunks]] = [(statistics_file(rank), lambda: npz_chunks(statistics))]
    if rank == 0:
        backbone = engine.parameters()
        files.append((BACKBONE, lambda: npz_chunks(backbone)))
    for head, bank in engine.banks.items():
        for field in bank.widths:
            rows = bank.host_rows(field, copied)
            files.append((center_file(field, rank, head), partial(array_chunks, rows, bank.num_local)))
    return files


def suitable_interval(on_gpu: bool, bank_bytes: int, minutes: float = 0) -> tuple[int, float]:
    """Returns updates and minutes between a training's checkpoints, chosen by their cost.

    On a CPU 2,000 updates take many minutes. Fast GPUs need only two minutes, and would mostly write large banks. So
    on GPUs the time between checkpoints is 50 times that of one save at 1 GB/s per rank, and at least 10 minutes.
    A training that has to wait for the files then spends 2 % of its time on them, and less if the host has memory for a
    copy. A failure costs 10 minutes with up to 12 GB per rank, and 33 with 40 GB, such as ten million classes on a GPU.

    Args:
        on_gpu: whether the training computes on GPUs.
        bank_bytes: bytes of a rank's centers and states; a large bank dwarfs the backbone.
        minutes: minutes that the user has set; 0 for none.

    Returns:
        (updates, minutes); 0 saves none by updates or by time.
    """
    if not on_gpu:
        return UPDATES, minutes
    return 0, minutes or max(MINUTES, bank_bytes / BYTES_PER_SECOND / SHARE / 60)


def _bank_bytes(engine: Engine) -> int:
    return sum(bank.nbytes for bank in engine.banks.values())


def _lower_priority() -> None:
    """Gives this thread the lowest priority, so that training gets the cores first; Linux sets it per thread."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
