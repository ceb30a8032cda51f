"""Measures whether reading slows a training: the reader alone, training on dummy batches, training on the data set.

The training is that of trainer.train at learning rates of 0. It saves nothing but the profile.
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

from partial_fc.training.profiling.facts import Phase, Profile, Tally, place_of
from partial_fc.training.profiling.measuring import SECONDS, STEPS, WARM_UP, endless, read_past_buffers, take_tally
from partial_fc.training.profiling.ram_disk import SetFiles, find_set_files
from partial_fc.training.profiling.report import write_report
from partial_fc.training.run_folder import check_writable

from . import build, collectives

ANNOUNCED_STEP = 3  # by then MXNet has allocated its buffers, and the duration of a step can be estimated


def profile(settings, seconds: float = SECONDS) -> None:
    """Measures, prints table and verdict on rank 0, and writes ``io_profile.png`` and ``.json``.

    Args:
        settings: of default.py, completed by its generate_config.
        seconds: length of each of the three phases; a phase that trains takes at least 20 steps.

    Raises:
        JobError: On every rank, if one of them cannot train on the data.
    """
    rank, size, local_rank = hvd.rank(), hvd.size(), hvd.local_rank()
    settings = _without_learning(settings)
    collectives.watch(settings.step_timeout, settings.host_timeout)
    collectives.run_on_all_ranks("sizes", lambda: _check(settings, local_rank))
    collectives.run_on_all_ranks(
        "room", lambda: build.require_memory(settings, rank, size, local_rank, hvd.local_size())
    )
    folder = os.path.join(settings.models_root, f"io-profile-{settings.network}-{settings.dataset}")
    collectives.on_rank_zero("output", check_writable, folder, rank)
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
    versions = {"python": platform.python_version(), "mxnet": mx.__version__}
    collectives.on_rank_zero("results", write_report, folder, settings, files, measured, versions)


def _check(settings, local_rank: int) -> None:
    if settings.debug:
        raise ValueError(
            f"--profile-io measures the reading of images, but {settings.dataset} with debug=True has dummy images: "
            "give a data set, such as rec=<path of a train.rec>"
        )
    build.require_device(settings, local_rank)


def _files(settings) -> SetFiles:
    return find_set_files(build.record_path(settings), "" if settings.rec else settings.data_name)


def _without_learning(settings):
    """Returns a copy at learning rates of 0: a step does the same work, and no loss becomes infinite."""
    settings = copy.deepcopy(settings)
    settings.lr = settings.backbone_lr = settings.memory_bank_lr = 0.0
    return settings


def _measure(settings, seconds: float, data, dummies, module, optimizer_params) -> Profile:
    batch_size = settings.batch_size
    _print(module.rank, f"reader alone: about {seconds:.0f} s")
    reader = _measure_reader(data, batch_size, seconds)
    sources = [endless(dummies), _batches(data)]
    iterator = _MeasuredIterator(module, data, batch_size, seconds, sources)
    module.fit(iterator, optimizer_params, iterator.after_step, mx.init.Xavier())
    gathered = collectives.gather("io_profile", (place_of(data.threads), reader, *iterator.tallies))
    places, *tallies = zip(*gathered)
    names = ("reader alone", "training, dummy images", "training, the set")
    alone, dummy, real = (Phase(name, batch_size, tally) for name, tally in zip(names, tallies))
    return Profile(alone, dummy, real, places, module.context.device_type == "gpu")


def _measure_reader(data, batch_size: int, seconds: float) -> Tally:
    """Takes batches from the reader as fast as it provides them."""
    batches = _batches(data)
    _wait_for(next(batches))
    collectives.barrier("start_reading")  # all ranks of a host read at the same time
    start, count = take_tally(data, 0, 0.0), 0
    while time.perf_counter() < start.seconds + seconds:
        _wait_for(next(batches))
        count += 1
    tally = take_tally(data, count * batch_size, 0.0).since(start)
    return tally._replace(waited=tally.seconds)


def _batches(data) -> Iterator:
    return read_past_buffers(data, _wait_for)


def _wait_for(batch) -> None:
    collectives.report_progress()
    batch.data[0].wait_to_read()


class _MeasuredIterator:
    """An iterator for fit that provides batches of one source after the other and measures each.

    One fit runs all phases, because a module is prepared for training once. Each source warms up and is measured for
    20 steps. The time of the slowest rank (all-reduce ``io_profile.seconds``) then determines the number of further
    steps, which is the same on every rank.

    Args:
        module: SampleDistributeModule that trains.
        data: FaceImageIter whose counters are read.
        batch_size: B.
        seconds: length of a phase.
        sources: endless iterators over batches.

    Attributes:
        provide_data, provide_label: as those of an MXNet iterator.
        tallies: a Tally for each source measured so far.
    """

    def __init__(self, module, data, batch_size: int, seconds: float, sources: list[Iterator]):
        self.provide_data, self.provide_label = data.provide_data, data.provide_label
        self.tallies: list[Tally] = []
        self._module, self._data, self._batch_size, self._seconds = module, data, batch_size, seconds
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

    def after_step(self, param) -> None:
        """Counts a step; fit calls it after each update, when it has taken the batch of the next one."""
        collectives.report_progress()
        param.loss.asscalar()  # waits as the log of a training does
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
        _print(self._module.rank, f"training on {source}: about {seconds:.0f} s")

    def _end_or_extend(self, tally: Tally) -> None:
        """Ends the phase, or adds the steps it needs to last long enough."""
        seconds = collectives.largest("io_profile.seconds", tally.seconds)
        if seconds < 0.9 * self._seconds:
            self._last_step = WARM_UP + math.ceil((self._step - WARM_UP) * self._seconds / seconds)
            return
        self.tallies.append(tally)
        self._step, self._last_step = 0, WARM_UP + STEPS

    def _tally(self) -> Tally:
        return take_tally(self._data, self._step * self._batch_size, self._module.waited_for_data)


def _print(rank: int, text: str) -> None:
    if rank == 0:
        print(text, flush=True)
