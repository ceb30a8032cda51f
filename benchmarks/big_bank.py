"""Steps of the classification layer over centers that are larger than the memory, in files, under a trivial backbone.

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

from partial_fc.distributed import env as launch  # noqa: E402

launch.share_cores(os.environ)

import horovod.mxnet as hvd  # noqa: E402
import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402

sys.path[:0] = [str(ROOT / "mxnet"), str(ROOT / "benchmarks")]

import layer  # noqa: E402

from partial_fc_mxnet import SampleDistributeModule, collectives  # noqa: E402

ROUND = 10  # steps of a line


class Counters(NamedTuple):
    """What this rank has done so far: seconds waited for the disk, bytes read from and written to it."""

    waited: float
    read: int
    written: int


class DiskWait:
    """Seconds that the calls which touch a bank's files spent neither computing nor in the queue for a core.

    The threads of a rank are more than its cores, and other programs may run: their time is not the disk's. Nor is
    that of MXNet's operators, so the calls begin when their arrays are ready.
    """

    def __init__(self, module):
        self.seconds = 0.0
        for name in ("gather", "read", "write"):
            self._watch(module.memory_bank.centers, name)
        self._watch(module.memory_optimizer, "update")  # takes and puts the rows of the momentum

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
    """The counters now."""
    with open("/proc/self/io") as lines:
        moved = {name: int(value) for name, value in (line.split(": ") for line in lines)}
    return Counters(wait.seconds, moved["read_bytes"], moved["write_bytes"])


def tell(steps: str, seconds: list[float], before: Counters, after: Counters, centers) -> None:
    """A line of rank 0 about some steps of all ranks."""
    each = [(now - then) / len(seconds) for now, then in zip(after, before)]
    on_disk = sum(files[1].disk_bytes for files in centers.files)
    mine = [*each, float(np.median(seconds)), layer.resident("RssAnon"), layer.resident("RssFile"), on_disk]
    waited, read, written, median, own, mapped, on_disk = np.transpose(collectives.gather("measured", mine))
    if hvd.rank() == 0:
        share = 100 * waited.mean() / np.mean(seconds)
        ranks = ", ".join(f"{a / 1e9:.2f} + {b / 1e9:.2f}" for a, b in zip(own, mapped))
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
    words = parser.parse_args()
    hvd.init()
    logging.basicConfig(level=logging.WARNING if hvd.rank() else logging.INFO, format="%(message)s")
    start = time.perf_counter()
    module = layer.build(SampleDistributeModule, words.classes, words.ratio, words.folder)
    centers = module.memory_bank.centers
    took = max(collectives.gather("initialised", time.perf_counter() - start))
    if hvd.rank() == 0:
        print(f"{words.classes} classes, r = {words.ratio}, {hvd.size()} ranks, made in {took:.0f} s")
        print("     steps | s: median, least | waiting for the disk | MB a step read, written by all ranks")
        print("           | GB of each rank: own memory + files in memory | GB of momentum on the disk")
    wait, seconds = DiskWait(module), []
    first = before = count(wait)
    for number, batch in enumerate(layer.batches(words.classes, words.steps), 1):
        collectives.gather("start", None)
        begin = time.perf_counter()
        module.forward_backward(batch)
        module.update()
        mx.nd.waitall()
        seconds.append(time.perf_counter() - begin)
        if number % ROUND == 0:
            now = count(wait)
            tell(f"{number - ROUND + 1}-{number}", seconds[-ROUND:], before, now, centers)
            before = now
    tell("all", seconds, first, count(wait), centers)


if __name__ == "__main__":
    main()
