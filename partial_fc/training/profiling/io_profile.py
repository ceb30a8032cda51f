"""Measures whether reading slows a training: the reader alone, training on dummy batches, training on the data set.

The training is that of trainer.train at learning rates of 0. It saves nothing but the profile.
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Iterator

from partial_fc.distributed.collectives import Collectives
from partial_fc.training.building import build_data, build_training
from partial_fc.training.engine import Engine, Framework, TrainingData
from partial_fc.training.inputs import record_path
from partial_fc.training.job_facts import versions
from partial_fc.training.loop import BatchEndParam, LoopState, updates
from partial_fc.training.run_folder import check_writable

from .facts import Phase, Profile, Tally, host_of_rank
from .measuring import SECONDS, STEPS, WARM_UP, endless, read_past_buffers, take_tally
from .ram_disk import SetFiles, find_set_files
from .report import write_report

ANNOUNCED_STEP = 3  # by then the framework has allocated its buffers, and the duration of a step can be estimated


def profile(settings, framework: Framework, seconds: float = SECONDS) -> None:
    """Measures, prints table and verdict on rank 0, and writes ``io_profile.png`` and ``.json``.

    Args:
        settings: of default.py, completed by its generate_config.
        framework: builds what is measured.
        seconds: length of each of the three phases; a phase that trains takes at least 20 steps.

    Raises:
        JobError: On every rank, if one of them cannot train on the data.
    """
    settings, collectives = _without_learning(settings), framework.collectives
    collectives.watch(settings.step_timeout, settings.host_timeout)
    collectives.run_on_all_ranks("sizes", lambda: _require_data_set(settings))
    data = build_data(settings, framework)
    files = collectives.run_on_all_ranks("files", lambda: _files(settings))
    folder = os.path.join(settings.models_root, f"io-profile-{settings.network}-{settings.dataset}")
    collectives.on_rank_zero("output", check_writable, folder, collectives.rank)
    dummies = framework.build_dummies(settings)
    engine = build_training(settings, framework, data, folder).engine
    measured = _measure(settings, seconds, data, dummies, engine)
    data.close()
    collectives.on_rank_zero("results", write_report, folder, settings, files, measured, versions(framework))


def _require_data_set(settings) -> None:
    if settings.debug:
        raise ValueError(
            f"--profile-io measures the reading of images, but {settings.dataset} with debug=True has dummy images: "
            "name a data set with --dataset, or set debug=False and rec=<path of a train.rec>"
        )


def _files(settings) -> SetFiles:
    return find_set_files(record_path(settings), "" if settings.rec else settings.data_name)


def _without_learning(settings):
    """Returns a copy at learning rates of 0: a step does the same work, and no loss becomes infinite."""
    settings = copy.deepcopy(settings)
    settings.lr = settings.backbone_lr = settings.memory_bank_lr = 0.0
    return settings


def _measure(settings, seconds: float, data: TrainingData, dummies: TrainingData, engine: Engine) -> Profile:
    batch_size, collectives = settings.batch_size, engine.collectives
    _print(collectives, f"reader alone: about {seconds:.0f} s")
    reader = _measure_reader(data, batch_size, seconds, collectives)
    loop = LoopState()
    sources = [endless(dummies), _batches(data, collectives)]
    iterator = _MeasuredIterator(collectives, loop, data, batch_size, seconds, sources)
    for update in updates(engine, iterator, loop):
        iterator.after_step(update)
    gathered = collectives.gather_object("io_profile", (host_of_rank(data.threads), reader, *iterator.tallies))
    rank_hosts, *tallies = zip(*gathered)
    names = ("reader alone", "training, dummy images", "training, the set")
    alone, dummy, real = (Phase(name, batch_size, tally) for name, tally in zip(names, tallies))
    return Profile(alone, dummy, real, rank_hosts, engine.on_gpu)


def _measure_reader(data: TrainingData, batch_size: int, seconds: float, collectives: Collectives) -> Tally:
    """Takes batches from the reader as fast as it provides them."""
    batches = _batches(data, collectives)
    next(batches)
    collectives.barrier("start_reading")  # all ranks of a host read at the same time
    start, count = take_tally(data, 0, 0.0), 0
    while time.perf_counter() < start.seconds + seconds:
        collectives.report_progress()
        next(batches)
        count += 1
    tally = take_tally(data, count * batch_size, 0.0).since(start)
    return tally._replace(waited=tally.seconds)


def _batches(data: TrainingData, collectives: Collectives) -> Iterator:
    return read_past_buffers(data, collectives.report_progress)


class _MeasuredIterator:
    """An iterator for `updates` that provides batches of one source after the other and measures each.

    One loop runs all phases. Each source warms up and is measured for 20 steps. The time of the slowest rank
    (all-reduce ``io_profile.seconds``) then determines the number of further steps, which is the same on every rank.

    Args:
        collectives: between the ranks.
        loop: whose waiting for data is read.
        data: whose counters are read.
        batch_size: B.
        seconds: length of a phase.
        sources: endless iterators over batches.

    Attributes:
        tallies: a Tally for each source measured so far.
    """

    def __init__(
        self,
        collectives: Collectives,
        loop: LoopState,
        data: TrainingData,
        batch_size: int,
        seconds: float,
        sources: list[Iterator],
    ):
        self.tallies: list[Tally] = []
        self._collectives, self._loop = collectives, loop
        self._data, self._batch_size, self._seconds = data, batch_size, seconds
        self._sources = sources
        self._step, self._last_step = 0, WARM_UP + STEPS
        self._start: Tally | None = None
        self._step_start = 0.0

    def __iter__(self):
        return self

    def __next__(self):
        if len(self.tallies) == len(self._sources):
            raise StopIteration
        return next(self._sources[len(self.tallies)])

    def reset(self) -> None:
        """Does nothing: the sources are endless."""

    def after_step(self, param: BatchEndParam) -> None:
        """Counts a step; called after each update, when the batch of the next one is read already."""
        self._collectives.report_progress()
        _ = param.loss_value  # waits as the log of a training does
        self._step += 1
        if self._step == ANNOUNCED_STEP:
            self._announce(time.perf_counter() - self._step_start)
        elif self._step == WARM_UP:
            self._start = self._tally()
        elif self._step == self._last_step:
            assert self._start is not None, "the warm-up ends before the last step"
            self._end_or_extend(self._tally().since(self._start))
        self._step_start = time.perf_counter()

    def _announce(self, step_seconds: float) -> None:
        """Prints the phase and its estimated duration, which is minutes if a step takes seconds."""
        seconds = WARM_UP * step_seconds + max(self._seconds, STEPS * step_seconds)
        source = "the set" if self.tallies else "dummy images"
        _print(self._collectives, f"training on {source}: about {seconds:.0f} s")

    def _end_or_extend(self, tally: Tally) -> None:
        """Ends the phase, or adds the steps it needs to last long enough."""
        seconds = self._collectives.max("io_profile.seconds", tally.seconds)
        if seconds < 0.9 * self._seconds:
            self._last_step = WARM_UP + math.ceil((self._step - WARM_UP) * self._seconds / seconds)
            return
        self.tallies.append(tally)
        self._step, self._last_step = 0, WARM_UP + STEPS

    def _tally(self) -> Tally:
        return take_tally(self._data, self._step * self._batch_size, self._loop.waited_for_data)


def _print(collectives: Collectives, text: str) -> None:
    if collectives.rank == 0:
        print(text, flush=True)
