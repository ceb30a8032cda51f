"""Building a training from its settings, for the trainer, the I/O profile and the benchmarks."""

import logging
import os
import platform
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

import partial_fc
from partial_fc.data.head_data import HeadData, JobData
from partial_fc.data.item_batches import ItemBatches
from partial_fc.data.label_file import LabelFacts
from partial_fc.data.training_data import Batches, TrainingData
from partial_fc.data.worker_batches import WorkerBatches
from partial_fc.distributed.consistency import code_digest
from partial_fc.distributed.env import decode_threads
from partial_fc.distributed.errors import errors_of_head
from partial_fc.evaluation.collapse import suggest_changes
from partial_fc.layer.sharding import shard_of
from partial_fc.utils import memory
from partial_fc.utils.garbage import infrequent_gc
from partial_fc.utils.text import plural

from .callbacks import CallBackLogging
from .engine import Engine
from .framework import Framework
from .heads import Head
from .loop import LoopState
from .new_centers import take_new_centers
from .saved_training import NEW_WEIGHTS, ResumePlan, read_pretrained, take_pretrained
from .schedule import (
    Epochs,
    RateFactor,
    items_of_update,
    learning_rates,
    margin_options_by_update,
    resolve_schedule,
)
from .tasks import Task, build_task
from .trackers import Trackers
from .verifying import CallBackVerification

CHECKED = 64  # items, spread over a set, that are read before the training begins


class Training(NamedTuple):
    """The parts of a training."""

    settings: Any  # ``max_update`` is the length of the training, even if ``num_epoch`` decides it
    task: Task
    rate_factor: RateFactor
    epochs: Epochs
    engine: Engine  # with initial or pretrained parameters
    data: JobData  # this rank's share
    heads: Sequence[Head]  # the first has these settings


def build_data(settings, task: Task, framework: Framework, heads: Sequence[Head] = ()) -> JobData:
    """Builds this rank's training data, and checks its device and the memory for the class centers.

    Where ``num_classes`` is 0, it becomes the number of classes in the set.

    ``heads``: all heads, the first with ``settings``; none is one head.

    Collectives: all-gathers ``status.context`` and ``status.data``.

    Raises:
        JobError: On every rank, if one cannot train on the data.
    """
    run_on_all_ranks = framework.collectives.run_on_all_ranks
    heads = heads or [Head("", settings)]

    def check_device() -> None:
        for head in heads:
            with errors_of_head(head.name):
                framework.require_device(head.settings)

    def build() -> JobData:
        sets: dict[str, TrainingData] = {}
        with ExitStack() as opened:  # closes the sets after an error
            for head in heads:
                with errors_of_head(head.name):
                    data = build_one(head.settings, build_task(head.settings) if sets else task, framework)
                sets[head.name] = opened.enter_context(closing(data))
            _require_bank_memory([head.settings for head in heads], framework)
            opened.pop_all()
        return HeadData(sets) if len(sets) > 1 else data

    build_one = build_dummies if settings.debug else _open_data
    run_on_all_ranks("context", check_device)
    return run_on_all_ranks("data", build)


def _open_data(settings, task: Task, framework: Framework) -> TrainingData:
    collectives = framework.collectives
    task.report_progress = collectives.report_progress
    batches = task.batches(collectives.rank, collectives.size)
    if not isinstance(batches, ItemBatches):
        for name in ("labels", "labels_per_item"):
            if settings[name]:
                raise ValueError(f"task {settings.task} reads batches of its own, which do not take {name}: remove it")
    if not settings.num_classes and isinstance(batches, ItemBatches):  # else the settings must have it
        settings.num_classes = batches.num_classes
        logging.info("num_classes %d, as many as in the set", settings.num_classes)
    batches.check_labels(settings.num_classes)
    if task.pixels:
        task.check_pixels(batches.sample(1))
    if isinstance(batches, ItemBatches) and not settings.skip_bad_images:
        batches.check_items(CHECKED)
    processes = settings.decode_processes
    if processes:
        share = partial(open_share, settings, collectives.rank, collectives.size, task.label_facts)
        batches = WorkerBatches(batches, share, processes)
    threads = processes or settings.decode_threads or decode_threads(collectives.local_size)
    return framework.load_data(batches, threads)


def open_share(settings, rank: int, size: int, label_facts: LabelFacts | None) -> Batches:
    """Opens a rank's share of the training set, in a reading process; for ``label_facts`` see Task."""
    task = build_task(settings)
    task.label_facts = label_facts
    return task.batches(rank, size)


def build_dummies(
    settings, task: Task, framework: Framework, label_shape: tuple[int, ...] | None = None
) -> TrainingData:
    """Builds dummy batches in the shapes of the training data, which cost nothing to read.

    ``label_shape``: see DataLoader; by default that of ``labels_per_item``.
    """
    random = np.random.default_rng((settings.seed, framework.collectives.rank))
    inputs = task.dummy_inputs(items_of_update(settings), random)
    if task.pixels:
        task.check_pixels(inputs)
    if label_shape is None:
        label_shape = (settings.labels_per_item,) if settings.labels_per_item else ()
    return framework.dummy_data(inputs, settings.num_classes, settings.seed, label_shape)


def _require_bank_memory(by_head: Sequence[Any], framework: Framework) -> None:
    """Raises ValueError if this rank's banks do not fit on its GPU, or a host's banks do not fit in host memory."""
    settings, collectives = by_head[0], framework.collectives
    if settings.bank_folder:
        return  # the bank checks the space on the disk
    needed = 0
    for head in by_head:
        shard = shard_of(head.num_classes, collectives.rank, collectives.size)
        needed += shard.size * framework.class_bytes(head)
    free = framework.free_gpu_bytes() if settings.bank_on_gpu else None
    if free is not None:
        hint = "start more ranks, or set bank_on_gpu=False"
        memory.require_memory(needed, free, f"on the GPU of rank {collectives.rank}", hint)
        return
    local_size = collectives.local_size
    place = f"for the {plural(local_size, 'rank')} of this host"
    hint = "train on more hosts, or store them in files: bank_folder=<folder on a fast disk>"
    memory.require_memory(local_size * needed, memory.free_memory(), place, hint)


def job_facts(settings, data: JobData, framework: Framework, heads: Sequence[Head] = ()) -> dict[str, Any]:
    """Returns the facts that must be the same on every rank of a job, by name."""
    return {
        **{f"setting {name}": value for name, value in settings.items()},
        **{f"head {head.name}": {**head.own, "weight": head.weight} for head in heads if head.name},
        "code": code_digest([os.path.dirname(partial_fc.__file__), *framework.source_folders]),
        "data set": data.digest,
        **{f"version of {name}": version for name, version in versions(framework).items()},
    }


def versions(framework: Framework) -> dict[str, str]:
    """Returns the versions of the software that affects a training's numbers."""
    return {"python": platform.python_version(), **framework.versions(), "numpy": np.__version__}


@infrequent_gc()
def build_training(
    settings,
    task: Task,
    framework: Framework,
    data: JobData,
    folder: str,
    plan: ResumePlan = NEW_WEIGHTS,
    heads: Sequence[Head] = (),
) -> Training:
    """Builds the engine, and loads pretrained weights if the training starts from them.

    The plan's checkpoint is not loaded here, because it also holds the state of the loop.

    Collectives: all-gather ``status.schedule``, those of read_pretrained, Framework.build_engine, take_pretrained and
        take_new_centers.

    Args:
        settings, task, framework, data: this rank's parts of the training.
        folder: folder in which the class centers are saved.
        plan: how the training starts.
        heads: see build_data.

    Raises:
        JobError: On every rank, if one fails.
    """
    epochs = Epochs(data.cursor.num_images, data.cursor.global_batch, plan.num_update, plan.position)
    settings, rate_factor = framework.collectives.run_on_all_ranks(
        "schedule", lambda: resolve_schedule(settings, epochs)
    )
    pretrained = None
    if plan.pretrained:
        with_classes, read_files = bool(settings.class_map), framework.read_pretrained
        pretrained = read_pretrained(plan.pretrained, with_classes, framework.collectives, read_files)
    model_format = plan.model_format(pretrained, framework.model_format)
    engine = framework.build_engine(settings, task, rate_factor, epochs, data, folder, model_format, heads)
    if pretrained is not None:
        class_map = take_pretrained(pretrained, settings, engine)
        take_new_centers(settings, class_map, engine, data)
    return Training(settings, task, rate_factor, epochs, engine, data, heads or [Head("", settings)])


def build_log(training: Training, trackers: Trackers, bar: tqdm, loop: LoopState) -> CallBackLogging:
    """Builds the callback that logs the loss, speed and learning rate of a training."""
    settings, engine = training.settings, training.engine
    collectives = engine.collectives
    backbone_lr, _ = learning_rates(settings, collectives.size)
    options_of = {head.name: margin_options_by_update(head.settings, training.epochs) for head in training.heads}

    def margin_options(num_update: int) -> dict[str, float]:
        options = ((name, *each) for name, of in options_of.items() for each in of(num_update).items())
        return {f"{option}.{name}" if name else option: value for name, option, value in options}

    return CallBackLogging(
        settings.log_every,
        collectives.rank,
        collectives.size,
        sum(items_of_update(head.settings) for head in training.heads),
        trackers,
        bar,
        engine=engine,
        max_update=settings.max_update,
        rate=lambda num_update: backbone_lr * training.rate_factor(num_update),
        margin_options=margin_options,
        loop=loop,
    )


def build_verification(training: Training, trackers: Trackers) -> CallBackVerification:
    """Builds the callback that verifies a training on its task's held-out sets."""
    settings = training.settings
    return CallBackVerification(
        training.engine,
        settings.batch_size,
        {} if settings.debug else training.task.evaluations(),
        settings.verify_every,
        trackers,
        suggest_changes(settings),
        settings.max_update,
    )
