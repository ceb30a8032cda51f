"""Measures whether reading slows a training: the reader alone, training on dummy batches, training on the data set.

The training runs like trainer.train, at learning rates of 0, and saves nothing but the profile.
"""

import copy
import math
import os
import socket
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

from partial_fc.data.sources.forms import is_dataset
from partial_fc.data.training_data import TrainingData
from partial_fc.distributed.collectives import Collectives
from partial_fc.distributed.env import cores_of_rank
from partial_fc.training.building import build_data, build_dummies, build_training, versions
from partial_fc.training.engine import Engine
from partial_fc.training.framework import Framework
from partial_fc.training.loop import LoopState, updates
from partial_fc.training.run_folder import check_writable, console, data_name
from partial_fc.training.schedule import items_of_update
from partial_fc.training.tasks import build_task
from partial_fc.utils.config import join_options, split_options
from partial_fc.utils.memory import free_memory
from partial_fc.utils.system_counters import disk_bytes, idle_seconds
from partial_fc.utils.text import say

from .facts import Phase, Profile, RankHost, Tally
from .ram_disk import find_set_files
from .report import write_report

SECONDS = 8.0  # default length of a phase
# Minimum steps of a phase, and steps before it: the first allocate memory and choose algorithms.
STEPS, WARM_UP = 20, 10
# Batches to skip before a measurement, plus one per decoding thread: they may have been decoded in advance.
READ_AHEAD = 4


def profile(settings, framework: Framework, seconds: float = SECONDS) -> None:
    """Measures, prints table and verdict on rank 0, and writes ``io_profile.png`` and ``.json``.

    Args:
        settings: all settings of the training.
        framework: builds what is measured.
        seconds: length of each of the three phases; a phase that trains takes at least 20 steps.

    Raises:
        JobError: On every rank, if one of them cannot train on the data.
    """
    settings, collectives = copy.deepcopy(settings), framework.collectives
    # With rates of 0 every step does the same work, and no loss becomes infinite.
    settings.lr = 0.0
    for name in ("optimizer_options", "layer_options"):
        settings[name] = join_options({**split_options(name, settings[name]), "lr": None})
    with collectives.watch(settings.step_timeout, settings.host_timeout):
        task = build_task(settings)
        kind = "images" if task.pixels else "items"
        with console(collectives.rank):
            data: Any = build_data(settings, task, framework)
        name = "" if settings.rec else settings.data_name
        files = collectives.run_on_all_ranks("files", lambda: find_set_files(task.source(), name))
        network = settings.network.rpartition(":")[2]
        folder = os.path.join(settings.models_root, f"io-profile-{network}-{data_name(settings)}")
        collectives.on_rank_zero("output", check_writable, folder, collectives.rank)
        dummies = build_dummies(settings, task, framework, data.label_shape)
        engine = build_training(settings, task, framework, data, folder).engine
        batch_size = items_of_update(settings)
        tallies = (
            _measure_reader(data, batch_size, seconds, collectives),
            _measure_training(f"dummy {kind}", _endless(dummies), engine, data, batch_size, seconds),
            _measure_training("the set", _new_batches(data, collectives), engine, data, batch_size, seconds),
        )
        rank_host = RankHost(socket.gethostname(), cores_of_rank(1), data.threads, free_memory())
        rank_hosts, *by_phase = zip(*collectives.gather_object("io_profile", (rank_host, *tallies)))
        names = ("reader alone", f"training, dummy {kind}", "training, the set")
        reader, on_dummies, training = (Phase(name, batch_size, tallies) for name, tallies in zip(names, by_phase))
        measured = Profile(
            reader,
            on_dummies,
            training,
            rank_hosts,
            engine.on_gpu,
            readers_setting="decode_processes" if settings.decode_processes else "decode_threads",
            python=not settings.decode_processes and (not task.source() or is_dataset(task.source())),
        )
        data.close()
        collectives.on_rank_zero("results", write_report, folder, settings, files, measured, versions(framework))


def _measure_reader(data: TrainingData, batch_size: int, seconds: float, collectives: Collectives) -> Tally:
    """Takes batches from the reader as fast as it provides them."""
    _print(collectives, f"reader alone: about {seconds:.0f} s")
    batches = _new_batches(data, collectives)
    next(batches)
    collectives.barrier("start_reading")  # all ranks of a host read at the same time
    start, count = _take_tally(data, 0, 0.0), 0
    while time.perf_counter() < start.seconds + seconds:
        collectives.report_progress()
        next(batches)
        count += 1
    tally = _take_tally(data, count * batch_size, 0.0).since(start)
    return tally._replace(waited=tally.seconds)


def _measure_training(
    source: str, batches: Iterator, engine: Engine, data: TrainingData, batch_size: int, seconds: float
) -> Tally:
    """Trains on endless batches, first to warm up, then for 20 steps and as many more as ``seconds`` allow.

    The slowest rank (all-reduce ``io_profile.seconds``) decides, so that every rank takes the same number of steps.
    """
    collectives, loop = engine.collectives, LoopState()
    steps = updates(engine, batches, loop)

    def train(count: int) -> None:
        for update in islice(steps, count):
            collectives.report_progress()
            _ = update.loss_value  # waits for the device, as logging does in a training

    _print(
        collectives, f"training on {source}: {WARM_UP} steps to warm up, then {STEPS} steps and {seconds:g} s or more"
    )
    train(WARM_UP)
    before, done, target = _take_tally(data, 0, loop.waited_for_data), 0, STEPS
    while True:
        train(target - done)
        done = target
        tally = _take_tally(data, done * batch_size, loop.waited_for_data).since(before)
        slowest = collectives.max("io_profile.seconds", tally.seconds)
        if slowest >= 0.9 * seconds:
            return tally
        target = math.ceil(done * seconds / slowest)


def _endless(data: TrainingData) -> Iterator[Any]:
    while True:
        try:
            yield data.next()
        except StopIteration:
            data.reset()


def _new_batches(data: TrainingData, collectives: Collectives) -> Iterator[Any]:
    """Yields batches, but not those decoded in advance, which would make a slow reader look fast."""
    batches = _endless(data)
    for _ in range(data.threads + READ_AHEAD):
        next(batches)
        collectives.report_progress()
    yield from batches


def _take_tally(data: TrainingData, images: int, waited: float) -> Tally:
    """Returns the current counters of this process, which has taken ``images`` and waited ``waited`` seconds."""
    counters, disk = data.counters, disk_bytes()
    return Tally(
        seconds=time.perf_counter(),
        images=images,
        waited=waited,
        cpu_seconds=time.process_time() + counters.cpu_seconds,
        bytes=counters.bytes,
        read_seconds=counters.read_seconds,
        busy_seconds=counters.busy_seconds,
        disk_bytes=None if disk is None else disk + counters.disk_bytes,
        idle_seconds=idle_seconds(),
    )


def _print(collectives: Collectives, text: str) -> None:
    if collectives.rank == 0:
        say(text)
