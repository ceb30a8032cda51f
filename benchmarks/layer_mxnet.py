"""Measures a step of the MXNet trainer's layer with a trivial backbone, and its textbook form, for layer.py.

Rank 0 prints {form: [seconds per step, bytes in addition to the bank]} as JSON. For centers in files:

    mpirun -q -np 2 python benchmarks/layer_mxnet.py --classes 10000000 --ratio 0.01 --steps 60 --folder /ssd/bank
"""

import argparse
import json
import logging
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from partial_fc.distributed.env import share_cores  # noqa: E402

share_cores(os.environ)

import horovod.mxnet as hvd  # noqa: E402
import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402

sys.path[:0] = [str(ROOT / "mxnet"), str(ROOT / "tools"), str(ROOT / "benchmarks")]

import case_mxnet  # noqa: E402
from host import resident, start_peak  # noqa: E402
from textbook_mxnet import TextbookModule  # noqa: E402

from partial_fc_mxnet import SampleDistributeModule  # noqa: E402
from partial_fc_tools.planner import Case  # noqa: E402

FORMS = {"textbook": TextbookModule, "MXNet": SampleDistributeModule}
BATCH, INPUTS = 64, 16


def build(kind, classes: int, ratio: float, folder: str | None = None):
    """Returns a module of class ``kind`` with a small FullyConnected; its bank is in memory, or in a folder."""
    case = Case(classes, hvd.size(), BATCH, ratio=ratio, device="cpu")
    return case_mxnet.build_module(case, case_mxnet.build_bank(case, folder), (INPUTS,), kind)


def batches(classes: int, steps: int):
    """Yields this rank's batches, the same for all kinds of modules."""
    rng = np.random.default_rng(hvd.rank())
    for _ in range(steps):
        images, labels = rng.standard_normal((BATCH, INPUTS)), rng.integers(0, classes, BATCH)
        yield mx.io.DataBatch([mx.nd.array(images)], [mx.nd.array(labels, dtype="int64")])


def time_steps(module, data) -> float:
    """Returns the median seconds of a step on this rank, without the first two steps."""
    seconds = []
    for batch in data:
        if hvd.size() > 1:
            hvd.allreduce(mx.nd.zeros((1,)), name="start").wait_to_read()
        start = time.perf_counter()
        module.forward_backward(batch)
        module.update()
        mx.nd.waitall()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds[2:]))


def measure(kind, classes: int, ratio: float, steps: int, folder: str | None) -> tuple[float, float]:
    """Returns the seconds of a step, and its bytes in addition to the module and its bank; maxima over the ranks.

    With a folder, the bytes are all memory of the process except for the page cache.
    """
    module = build(kind, classes, ratio, folder)
    if not folder:
        module.memory_bank.weight_mom.wait_to_read()
    before = start_peak()
    seconds = time_steps(module, batches(classes, steps + 2))
    local = seconds, float(resident("RssAnon") if folder else resident("VmHWM") - before)
    return tuple(np.max(hvd.allgather_object(local, name="measured"), axis=0)) if hvd.size() > 1 else local


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--ratio", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--folder", help="keep the centers in files here; skips the textbook form")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    hvd.init()
    forms = {"MXNet": FORMS["MXNet"]} if args.folder else FORMS
    case = args.classes, args.ratio, args.steps, args.folder
    measured = {name: measure(kind, *case) for name, kind in forms.items()}
    if hvd.rank() == 0:
        print(json.dumps({name: [float(value) for value in pair] for name, pair in measured.items()}), flush=True)


if __name__ == "__main__":
    main()
