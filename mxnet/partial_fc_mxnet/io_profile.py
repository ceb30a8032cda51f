"""Measures whether reading slows a training: the reader alone, training on dummy batches, training on the set.

Training is that of trainer.train, at learning rates of 0, and keeps nothing: a profile changes no file but its own.
"""

from __future__ import annotations

import copy
import math
import os
import platform
import time
from collections.abc import Iterator

import horovod.mxnet as hvd
import mxnet as mx

from partial_fc.training.profiling.facts import Phase, Profile, Tally, disk_bytes, idle_seconds, place_of
from partial_fc.training.profiling.ram_disk import SetFiles, find_set_files
from partial_fc.training.profiling.report import draw_chart, format_table, numbers
from partial_fc.training.profiling.verdict import judge
from partial_fc.training.report import write_summary
from partial_fc.training.run_folder import check_writable

from . import build, collectives

SECONDS = 8.0
# Steps of a phase at least, and before it: the first ones allocate and choose algorithms.
STEPS, WARM = 20, 10
# Batches, beyond one a decoding thread, after which none is left of those that were read ahead in quiet times.
READ_AHEAD = 4
# Settings that cost decoding threads much, to be named where those are too slow.
COSTLY = ("color_jittering", "jpeg_compression")


def profile(settings, seconds: float = SECONDS) -> None:
    """Measures, prints table and verdict on rank 0, and writes ``io_profile.png`` and ``.json``.

    Args:
        settings: of default.py, filled in by its generate_config.
        seconds: length of each of the three phases; one that trains takes 20 steps at least.

    Raises:
        JobError: on every rank, where something was wrong on one before measuring.
    """
    rank, size, local_rank = hvd.rank(), hvd.size(), hvd.local_rank()
    settings = _without_learning(settings)
    collectives.watch(settings.step_timeout, settings.host_timeout)
    collectives.run_on_all_ranks("sizes", lambda: (_check(settings), build.check_context(settings, local_rank)))
    collectives.run_on_all_ranks(
        "room", lambda: build.require_memory(settings, rank, size, local_rank, hvd.local_size())
    )
    folder = os.path.join(settings.models_root, f"io-profile-{settings.network}-{settings.dataset}")
    collectives.run_on_all_ranks("output", lambda: check_writable(folder, rank) if rank == 0 else None)
    data, files = collectives.run_on_all_ranks(
        "data", lambda: (build.build_data(settings, rank, size, hvd.local_size()), _files(settings))
    )
    dummies = build.build_dummies(settings, rank, size)
    bank = collectives.run_on_all_ranks(
        "memory_bank", lambda: build.build_bank(settings, rank, size, local_rank, folder)
    )
    module, optimizer_params = collectives.run_on_all_ranks("module", lambda: build.build_module(settings, bank, size))
    measured = _measure(settings, seconds, data, dummies, module, optimizer_params)
    data.close()
    collectives.run_on_all_ranks("results", lambda: _report(settings, folder, files, measured) if rank == 0 else None)


def _check(settings) -> None:
    if settings.debug:
        raise ValueError(
            f"--profile-io measures how images are read, but {settings.dataset} with debug=True has dummy ones: "
            "give it a data set, such as rec=<path of a train.rec>"
        )


def _files(settings) -> SetFiles:
    return find_set_files(build.record_path(settings), "" if settings.rec else settings.data_name)


def _without_learning(settings):
    """The same settings at learning rates of 0: a step does the same work, and no loss can become infinite."""
    settings = copy.deepcopy(settings)
    settings.lr = settings.backbone_lr = settings.memory_bank_lr = 0.0
    return settings


def _measure(settings, seconds: float, data, dummies, module, optimizer_params) -> Profile:
    batch_size, rank = settings.batch_size, module.rank
    _tell(rank, f"reader alone: about {seconds:.0f} s")
    reader = _read(data, batch_size, seconds)
    course = _Course(module, data, batch_size, seconds, [_endless(dummies), _from_empty(data)])
    module.fit(course, optimizer_params, course.after_step, mx.init.Xavier())
    gathered = collectives.gather("io_profile", (place_of(data.threads), reader, *course.tallies))
    places, *tallies = zip(*gathered)
    names = ("reader alone", "training, dummy images", "training, the set")
    phases = [Phase(name, batch_size, tally) for name, tally in zip(names, tallies)]
    return Profile(*phases, places, module.context.device_type == "gpu")


def _read(data, batch_size: int, seconds: float) -> Tally:
    """Takes batches from the reader as fast as it gives them."""
    batches = _from_empty(data)
    _take(batches)
    collectives.gather("start_reading", None)  # all ranks of a host read at once
    start, count = _tally(data, 0, 0.0), 0
    while time.perf_counter() < start.seconds + seconds:
        _take(batches)
        count += 1
    end = _tally(data, count * batch_size, 0.0).since(start)
    return end._replace(waited=end.seconds)


def _take(batches: Iterator) -> None:
    collectives.report_progress()
    next(batches).data[0].wait_to_read()


def _endless(data) -> Iterator:
    while True:
        try:
            yield data.next()
        except StopIteration:
            data.reset()


def _from_empty(data) -> Iterator:
    """The batches of a reader whose stock has been used up: a slow one would seem fast for as long as that lasts."""
    batches = _endless(data)
    for _ in range(data.threads + READ_AHEAD):
        _take(batches)
    yield from batches


def _tally(data, images: int, waited: float) -> Tally:
    counters = data.counters
    return Tally(
        seconds=time.perf_counter(),
        images=images,
        waited=waited,
        cpu_seconds=time.process_time(),
        bytes=counters.bytes,
        read_seconds=counters.read_seconds,
        busy_seconds=counters.busy_seconds,
        disk_bytes=disk_bytes(),
        idle_seconds=idle_seconds(),
    )


class _Course:
    """What fit is given in place of an iterator: it trains on one source after the other, measuring each.

    A single fit for all phases, because a module is set up for training once. Each source warms up and is measured for
    20 steps; how long these took on the slowest rank (all-reduce ``io_profile.seconds``) tells how many there shall
    be, the same number on every rank.

    Args:
        module: SampleDistributeModule that trains.
        data: FaceImageIter, whose counters are read.
        batch_size: B.
        seconds: of a phase.
        sources: iterators over batches that have no end.

    Attributes:
        provide_data: as an iterator has it.
        tallies: a Tally for each source that has been measured.
    """

    def __init__(self, module, data, batch_size: int, seconds: float, sources: list):
        self.provide_data, self.provide_label = data.provide_data, data.provide_label
        self.tallies: list[Tally] = []
        self._module, self._data, self._batch_size, self._seconds = module, data, batch_size, seconds
        self._sources = sources
        self._step, self._end = 0, WARM + STEPS
        self._start, self._before = None, 0.0

    def __iter__(self):
        return self

    def __next__(self):
        if len(self.tallies) == len(self._sources):
            raise StopIteration
        return next(self._sources[len(self.tallies)])

    def reset(self) -> None:
        """Nothing: the sources start again by themselves."""

    def after_step(self, param) -> None:
        """Called by fit after each update, when the batch of the next one has been taken."""
        collectives.report_progress()
        param.loss.asscalar()  # as the log of a training does
        self._step += 1
        if self._step == 3:
            self._announce(time.perf_counter() - self._before)
        elif self._step == WARM:
            self._start = self._now()
        elif self._step == self._end:
            self._settle(self._now().since(self._start))
        self._before = time.perf_counter()

    def _announce(self, seconds: float) -> None:
        """Says what comes and how long it takes, at so many seconds a step: minutes, where a step takes some."""
        whole = WARM * seconds + max(self._seconds, STEPS * seconds)
        _tell(self._module.rank, f"training on {'the set' if self.tallies else 'dummy images'}: about {whole:.0f} s")

    def _settle(self, done: Tally) -> None:
        """Ends the phase, or makes it as much longer as it is too short."""
        seconds = collectives.largest("io_profile.seconds", done.seconds)
        if seconds < 0.9 * self._seconds:
            self._end = WARM + math.ceil((self._step - WARM) * self._seconds / seconds)
            return
        self.tallies.append(done)
        self._step, self._end = 0, WARM + STEPS

    def _now(self) -> Tally:
        return _tally(self._data, self._step * self._batch_size, self._module.waited_for_data)


def _report(settings, folder: str, files: SetFiles, measured: Profile) -> None:
    path = os.path.join(folder, "io_profile")
    ranks = len(measured.places)
    title = (
        f"{settings.network} on {settings.dataset}, batch_size {settings.batch_size}, {ranks} rank{'s' * (ranks > 1)}"
    )
    # First of all what was measured, which no later error shall take away.
    print(f"\n{title}\n\n{format_table(measured)}\n", flush=True)
    verdict = judge(measured, files, tuple(name for name in COSTLY if settings[name]))
    print(verdict.text)
    for line in verdict.lines:
        print(f"    {line}")
    shown = {name: settings[name] for name in ("network", "dataset", "batch_size", "image_size", *COSTLY)}
    versions = {"python": platform.python_version(), "mxnet": mx.__version__}
    write_summary(path + ".json", {**shown, **numbers(measured, verdict), "versions": versions})
    draw_chart(path + ".png", title, measured, verdict)
    print(f"written to {path}.png and .json", flush=True)


def _tell(rank: int, text: str) -> None:
    if rank == 0:
        print(text, flush=True)
