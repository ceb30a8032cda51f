"""What a step takes beyond the bank does not grow with the classes where nothing is kept between its walks."""

import mxnet as mx
import numpy as np

from benchmarks.layer import resident, start_peak
from partial_fc_mxnet import MarginLoss, MemoryBank, MemoryBankSGDOptimizer
from partial_fc_mxnet.center_walk import CenterWalk

G, E, TILE = 128, 64, 2048
MEGABYTE = 1 << 20


def peak_of_a_step(classes, kept_bytes, folder):
    """Bytes that the second step takes beyond what there was before the first."""
    bank = MemoryBank(classes, classes, 0, 0, E, str(folder), class_start=0)
    walk = CenterWalk(MarginLoss(), bank, mx.cpu(), TILE, kept_bytes)
    features = mx.nd.random.normal(shape=(G, E))
    features.wait_to_read()
    before = start_peak()
    for _ in range(2):
        statistics = walk.statistics(features, np.arange(G), np.arange(classes))
        log_sum_exp = statistics[0] + np.log(statistics[1])
        walk.gradients(log_sum_exp, MemoryBankSGDOptimizer(None, 1 / G), 0.1).wait_to_read()
    return resident("VmHWM") - before


def test_memory_does_not_grow_with_the_classes(tmp_path):
    small, large = (peak_of_a_step(classes, 0, tmp_path) for classes in (10_000, 150_000))
    # The logits of the large one would take 77 MB; a tile's take 1, its gradient half of that.
    assert small < 16 * MEGABYTE
    assert large < small + 8 * MEGABYTE


def test_what_is_kept_stays_under_its_limit(tmp_path):
    logits = 4 * G * 150_000
    # What earlier tests have freed in pieces, glibc uses again: half of it need not be new.
    assert logits / 2 < peak_of_a_step(150_000, logits, tmp_path) < logits + 24 * MEGABYTE
    assert peak_of_a_step(150_000, logits - 1, tmp_path) < 24 * MEGABYTE
