"""Steps of the classification layer with a trivial backbone and centers in files that are larger than the memory.

. setup-utils/env.sh
mpirun -q -np 2 python benchmarks/big_bank.py --folder /ssd/bank          # 10 million classes, r = 0.01: 41 GB of disk
.venv-torch/bin/torchrun --nproc_per_node=2 benchmarks/big_bank.py --folder /ssd/bank                # with PyTorch
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from partial_fc.distributed.env import share_cores  # noqa: E402

share_cores(os.environ)

import numpy as np  # noqa: E402
from host import resident  # noqa: E402

from partial_fc.distributed.collectives import Collectives  # noqa: E402
from partial_fc.layer.bank_files import BankFiles  # noqa: E402

ROUND = 10  # steps per line of output


class Training(NamedTuple):
    """A layer in training with either trainer.

    Attributes:
        collectives: of this process.
        files: of the centers of this rank.
        batches: of this rank.
        step: trains on one of them.
        file_calls: (owner, name) of the functions that read and write the files.
        finish: waits until an argument of such a function is computed, and returns.
    """

    collectives: Collectives
    files: BankFiles
    batches: Iterator[Any]
    step: Callable[[Any], None]
    file_calls: list[tuple[Any, str]]
    finish: Callable[[Any], None]


def mxnet_training(args: argparse.Namespace) -> Training:
    import horovod.mxnet as hvd
    import layer_mxnet
    import mxnet as mx

    from partial_fc_mxnet import SampleDistributeModule, collectives

    hvd.init()
    module = layer_mxnet.build(SampleDistributeModule, args.classes, args.ratio, args.folder)
    centers = module.memory_bank.centers

    def step(batch) -> None:
        module.forward_backward(batch)
        module.update()
        mx.nd.waitall()

    def finish(argument) -> None:
        if isinstance(argument, mx.nd.NDArray):
            argument.wait_to_read()

    calls = [*((centers, name) for name in ("gather", "read", "write")), (module.memory_optimizer, "update")]
    batches = layer_mxnet.batches(args.classes, args.steps)
    return Training(collectives.OF_PROCESS, centers.files, batches, step, calls, finish)


def torch_training(args: argparse.Namespace) -> Training:
    import layer_torch
    import torch.distributed as dist

    from partial_fc_torch.layer.center_gradients import SGDUpdate

    dist.init_process_group("gloo")
    layer = layer_torch.partial_fc(args.classes, args.ratio, "cpu", folder=args.folder)
    softmax = layer._layer._softmax
    calls = [(softmax, "_compute_targets"), (softmax, "_compute_logits"), (SGDUpdate, "__call__")]
    batches, step = layer_torch.batches(args.classes, args.steps, "cpu"), layer_torch.trainer(layer, "cpu")
    return Training(layer.collectives, layer.files, batches, step, calls, lambda argument: None)


class Counters(NamedTuple):
    """Totals of this rank: seconds spent waiting for the disk, bytes read from it and written to it."""

    waited: float
    read: int
    written: int


class DiskWait:
    """Seconds in which the calls that access the files of a bank neither computed nor waited for a core.

    A rank has more threads than cores, and other programs may run, so the time in the run queue is excluded. To exclude
    MXNet's operators too, a call starts when its arguments are ready.
    """

    def __init__(self, training: Training):
        self.seconds = 0.0
        self._finish = training.finish
        for owner, name in training.file_calls:
            self._watch(owner, name)

    def _watch(self, owner, name: str) -> None:
        call = getattr(owner, name)

        def watched(*args, **more):
            for argument in args:
                self._finish(argument)
            start = _waiting_clock()
            result = call(*args, **more)
            self.seconds += _waiting_clock() - start
            return result

        setattr(owner, name, watched)


def _waiting_clock() -> float:
    with open("/proc/thread-self/schedstat") as numbers:
        queued = int(numbers.read().split()[1]) / 1e9
    return time.perf_counter() - time.thread_time() - queued


def count(wait: DiskWait) -> Counters:
    """Returns the current counters."""
    with open("/proc/self/io") as lines:
        totals = {name: int(value) for name, value in (line.split(": ") for line in lines)}
    return Counters(wait.seconds, totals["read_bytes"], totals["write_bytes"])


def report(steps: str, seconds: list[float], before: Counters, after: Counters, training: Training) -> None:
    """Prints a line on rank 0 about some steps of all ranks."""
    per_step = [(end - start) / len(seconds) for end, start in zip(after, before)]
    on_disk = sum(files[1].disk_bytes for files in training.files.pieces)
    local = [*per_step, float(np.median(seconds)), resident("RssAnon"), resident("RssFile"), on_disk]
    gathered = training.collectives.gather_object("measured", local)
    waited, read, written, median, anonymous, mapped, on_disk = np.transpose(gathered)
    if training.collectives.rank == 0:
        share = 100 * waited.mean() / np.mean(seconds)
        ranks = ", ".join(f"{a / 1e9:.2f} + {b / 1e9:.2f}" for a, b in zip(anonymous, mapped))
        print(
            f"{steps:>10} | {median.max():6.2f} {min(seconds):6.2f} | {share:3.0f} % | {read.sum() / 1e6:5.0f} "
            f"{written.sum() / 1e6:5.0f} | {ranks} | {on_disk.sum() / 1e9:5.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=10_000_000)
    parser.add_argument("--ratio", type=float, default=0.01)
    parser.add_argument("--folder", required=True, help="on a disk with room for centers and momentum")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    level = logging.INFO if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK")) == "0" else logging.WARNING
    logging.basicConfig(level=level, format="%(message)s")
    start = time.perf_counter()
    training = (torch_training if "TORCHELASTIC_RUN_ID" in os.environ else mxnet_training)(args)
    job = training.collectives
    took = max(job.gather_object("initialized", time.perf_counter() - start))
    if job.rank == 0:
        print(f"{args.classes} classes, r = {args.ratio}, {job.size} ranks, initialized in {took:.0f} s")
        print("     steps | s: median, minimum | waiting for the disk | MB per step read, written by all ranks")
        print("           | GB of each rank: anonymous memory + mapped files | GB of momentum on the disk")
    wait, seconds = DiskWait(training), []
    first = before = count(wait)
    for number, batch in enumerate(training.batches, 1):
        job.barrier("start")
        begin = time.perf_counter()
        training.step(batch)
        seconds.append(time.perf_counter() - begin)
        if number % ROUND == 0:
            current = count(wait)
            report(f"{number - ROUND + 1}-{number}", seconds[-ROUND:], before, current, training)
            before = current
    report("all", seconds, first, count(wait), training)


if __name__ == "__main__":
    main()
