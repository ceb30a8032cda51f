"""Without cached logits, a step's memory beyond the bank does not grow with the number of classes."""

import os
import subprocess
import sys

import mxnet as mx
import numpy as np
import pytest

from benchmarks.host import resident, start_peak
from partial_fc_mxnet import MarginLoss, MemoryBank, MemoryBankSGDOptimizer
from partial_fc_mxnet.layer.tiled_softmax import TiledMarginSoftmax

G, E, TILE = 128, 64, 2048
MEGABYTE = 1 << 20


def peak_of_a_step(classes, logits_cache_bytes):
    """Returns the peak memory, in bytes, that steps add in a new process."""
    command = [sys.executable, __file__, str(classes), str(logits_cache_bytes)]
    result = subprocess.run(
        command,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert result.returncode == 0, result.stderr
    return int(result.stdout)


def steps_over(classes, logits_cache_bytes):
    """Returns a function that makes two steps over a bank of ``classes``."""
    bank = MemoryBank(classes, classes, 0, 0, E, "", class_start=0)
    softmax = TiledMarginSoftmax(MarginLoss(), bank, mx.cpu(), TILE, logits_cache_bytes)
    features = mx.nd.random.normal(shape=(G, E))
    features.wait_to_read()

    def run():
        for _ in range(2):
            statistics = softmax.forward(features, np.arange(G), np.arange(classes))
            log_sum_exp = statistics[0] + np.log(statistics[1])
            softmax.backward(log_sum_exp, MemoryBankSGDOptimizer(None, 1 / G), 0.1).wait_to_read()

    return run


def measure(classes, logits_cache_bytes):
    run = steps_over(classes, logits_cache_bytes)
    # Steps of one small tile first: resident memory includes the pages of MXNet's code from their first use.
    steps_over(G, 0)()
    before = start_peak()
    run()
    return resident("VmHWM") - before


@pytest.mark.slow
def test_memory_does_not_grow_with_the_classes_beyond_the_limit_of_cached_logits():
    logits = 4 * G * 150_000
    small, large = peak_of_a_step(10_000, 0), peak_of_a_step(150_000, logits - 1)
    # All logits of the large case take 77 MB; a tile's logits take 1 MB, and its gradient half of that.
    assert small < 16 * MEGABYTE
    assert large < small + 8 * MEGABYTE
    assert logits < peak_of_a_step(150_000, logits) < logits + 24 * MEGABYTE


if __name__ == "__main__":
    print(measure(int(sys.argv[1]), int(sys.argv[2])))
