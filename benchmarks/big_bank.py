"""Steps of the classification layer with a trivial backbone and centers in files that are larger than the memory.

. setup-utils/env.sh
mpirun -q -np 2 python benchmarks/big_bank.py --folder /ssd/bank          # 10 million classes, r = 0.01: 41 GB of disk
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from partial_fc.distributed.env import share_cores  # noqa: E402

share_cores(os.environ)

import horovod.mxnet as hvd  # noqa: E402
import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402

sys.path[:0] = [str(ROOT / "mxnet"), str(ROOT / "benchmarks")]

import layer_mxnet  # noqa: E402
from host import resident  # noqa: E402

from partial_fc_mxnet import SampleDistributeModule, collectives  # noqa: E402

ROUND = 10  # steps per line of output


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

    def __init__(self, module):
        self.seconds = 0.0
        for name in ("gather", "read", "write"):
            self._watch(module.memory_bank.centers, name)
        self._watch(module.memory_optimizer, "update")  # gathers and scatters the rows of the momentum

    def _watch(self, owner, name: str) -> None:
        call = getattr(owner, name)

        def watched(*args, **more):
            for array in args:
                if isinstance(array, mx.nd.NDArray):
                    array.wait_to_read()
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


def report(steps: str, seconds: list[float], before: Counters, after: Counters, centers) -> None:
    """Prints a line on rank 0 about some steps of all ranks."""
    per_step = [(end - start) / len(seconds) for end, start in zip(after, before)]
    on_disk = sum(files[1].disk_bytes for files in centers.files.pieces)
    local = [*per_step, float(np.median(seconds)), resident("RssAnon"), resident("RssFile"), on_disk]
    waited, read, written, median, anonymous, mapped, on_disk = np.transpose(collectives.gather("measured", local))
    if hvd.rank() == 0:
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
    hvd.init()
    logging.basicConfig(level=logging.WARNING if hvd.rank() else logging.INFO, format="%(message)s")
    start = time.perf_counter()
    module = layer_mxnet.build(SampleDistributeModule, args.classes, args.ratio, args.folder)
    centers = module.memory_bank.centers
    took = max(collectives.gather("initialized", time.perf_counter() - start))
    if hvd.rank() == 0:
        print(f"{args.classes} classes, r = {args.ratio}, {hvd.size()} ranks, initialized in {took:.0f} s")
        print("     steps | s: median, minimum | waiting for the disk | MB per step read, written by all ranks")
        print("           | GB of each rank: anonymous memory + mapped files | GB of momentum on the disk")
    wait, seconds = DiskWait(module), []
    first = before = count(wait)
    for number, batch in enumerate(layer_mxnet.batches(args.classes, args.steps), 1):
        collectives.barrier("start")
        begin = time.perf_counter()
        module.forward_backward(batch)
        module.update()
        mx.nd.waitall()
        seconds.append(time.perf_counter() - begin)
        if number % ROUND == 0:
            current = count(wait)
            report(f"{number - ROUND + 1}-{number}", seconds[-ROUND:], before, current, centers)
            before = current
    report("all", seconds, first, count(wait), centers)


if __name__ == "__main__":
    main()
