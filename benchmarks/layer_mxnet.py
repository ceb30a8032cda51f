"""A step of the MXNet trainer's layer with a trivial backbone, and of its textbook form. Run by benchmarks/layer.py.

Rank 0 prints {form: [seconds of a step, bytes beyond the bank]} as JSON.
"""

from __future__ import annotations

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

sys.path[:0] = [str(ROOT / "mxnet"), str(ROOT / "benchmarks")]

from host import resident, start_peak  # noqa: E402
from textbook_mxnet import TextbookModule  # noqa: E402

from partial_fc.layer.sharding import num_sampled, shard_of  # noqa: E402
from partial_fc_mxnet import MarginLoss, MemoryBank, MemoryBankSGDOptimizer, SampleDistributeModule, get_scheduler  # noqa: E402

FORMS = {"textbook": TextbookModule, "MXNet": SampleDistributeModule}
BATCH, EMBEDDING, INPUTS = 64, 512, 16


def build(kind, classes: int, ratio: float, folder: str | None = None, **layer_options):
    """A module of class ``kind`` with one small FullyConnected; its bank is in memory, or in files in a folder."""
    shard = shard_of(classes, hvd.rank(), hvd.size())
    sampled, options = num_sampled(shard.size, ratio), {"folder": folder, "class_start": shard.start}
    bank = MemoryBank(sampled, shard.size, hvd.rank(), hvd.local_rank(), EMBEDDING, "", **options)
    backbone, memory = get_scheduler([], 0.1, 0.1)
    symbol = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=EMBEDDING, name="fc1")
    optimizer = MemoryBankSGDOptimizer(memory, 1.0 / (BATCH * hvd.size()))
    module = kind(symbol, MarginLoss((1.0, 0.0, 0.4), 64, EMBEDDING), bank, optimizer, **layer_options)
    module.bind([mx.io.DataDesc("data", (BATCH, INPUTS))])
    module.init_params(mx.init.Xavier())
    module.init_optimizer(optimizer_params={"learning_rate": 0.1, "lr_scheduler": backbone})
    return module


def batches(classes: int, steps: int):
    """Yields batches of this rank, the same for every kind of module."""
    rng = np.random.default_rng(hvd.rank())
    for _ in range(steps):
        images, labels = rng.standard_normal((BATCH, INPUTS)), rng.integers(0, classes, BATCH)
        yield mx.io.DataBatch([mx.nd.array(images)], [mx.nd.array(labels, dtype="int64")])


def time_steps(module, data) -> float:
    """Median seconds of a step on this rank, without the first two steps."""
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


def measure(kind, classes: int, ratio: float, steps: int, **layer_options) -> tuple[float, float]:
    """Seconds of a step, and the bytes that steps need beyond the module and its bank; the maximum over the ranks."""
    module = build(kind, classes, ratio, **layer_options)
    module.memory_bank.weight_mom.wait_to_read()
    before = start_peak()
    local = time_steps(module, batches(classes, steps + 2)), float(resident("VmHWM") - before)
    return tuple(np.max(hvd.allgather_object(local, name="measured"), axis=0)) if hvd.size() > 1 else local


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--ratio", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--logits-cache-mb", type=int, default=256, help="0 computes the logits twice")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    hvd.init()
    options = {"textbook": {}, "MXNet": {"logits_cache_mb": args.logits_cache_mb}}
    case = args.classes, args.ratio, args.steps
    measured = {name: measure(kind, *case, **options[name]) for name, kind in FORMS.items()}
    if hvd.rank() == 0:
        print(json.dumps({name: [float(value) for value in pair] for name, pair in measured.items()}), flush=True)


if __name__ == "__main__":
    main()
