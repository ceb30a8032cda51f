"""A rank of benchmarks/links.py, which starts it: measures the steps that it is asked for."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "mxnet")]

from partial_fc.distributed.env import share_cores  # noqa: E402

share_cores(os.environ)

import horovod.mxnet as hvd  # noqa: E402
import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks import case_mxnet  # noqa: E402
from partial_fc.planner import Case  # noqa: E402

NETWORK, IMAGE = "small", (3, 112, 112)
INTERFACE = "net0"  # of the hosts that tests/virtual_hosts.py makes


def case_of(ranks: int, classes: int, batch: int) -> Case:
    """What is trained."""
    return Case(classes, ranks, batch, network=NETWORK, device="cpu")


def asked() -> str:
    """A line [classes, images of a rank, steps] from rank 0's standard input, on every rank."""
    line = sys.stdin.readline() if hvd.rank() == 0 else ""
    return (hvd.broadcast_object(line, 0, name="asked") if hvd.size() > 1 else line).strip()


def print_steps(module, case: Case, steps: int, warm_up: int) -> None:
    """Rank 0 prints the least and the median of the steps' seconds, and the median of the bytes that its card sent."""
    rng = np.random.default_rng(hvd.rank())
    images = mx.nd.array(rng.standard_normal((case.batch, *IMAGE), np.float32))
    seconds, sent = [], []
    for _ in range(warm_up + steps):
        labels = mx.nd.array(rng.integers(0, case.classes, case.batch), dtype="int64")
        mx.nd.waitall()
        bytes_before, before = sent_bytes(), time.perf_counter()
        module.forward_backward(mx.io.DataBatch([images], [labels]))
        module.update()
        mx.nd.waitall()
        seconds.append(time.perf_counter() - before)
        sent.append(sent_bytes() - bytes_before)
    if hvd.rank() == 0:
        seconds, sent = seconds[warm_up:], sent[warm_up:]
        print(json.dumps([min(seconds), float(np.median(seconds)), float(np.median(sent))]), flush=True)


def sent_bytes() -> int:
    """By this host's card; 0 where it has none of that name."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == INTERFACE:
            return int(counts.split()[8])
    return 0


def main() -> None:
    hvd.init()
    modules = {}
    while line := asked():
        classes, batch, steps = json.loads(line)
        case = case_of(hvd.size(), classes, batch)
        warm_up = 1 if (classes, batch) in modules else 3  # the first steps load code and fill Horovod's cache
        if (classes, batch) not in modules:
            modules[classes, batch] = case_mxnet.build_module(case, case_mxnet.build_bank(case), IMAGE)
        print_steps(modules[classes, batch], case, steps, warm_up)


if __name__ == "__main__":
    main()
