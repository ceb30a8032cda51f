"""The MXNet layer computes the record of tests/recorded_steps.py. As a program, writes the record."""

import mxnet as mx
import numpy as np
import pytest

from partial_fc.layer.sharding import num_sampled
from partial_fc_mxnet import MarginLoss, MemoryBank, MemoryBankSGDOptimizer
from partial_fc_mxnet.layer.class_layer import ClassLayer
from recorded_steps import CASES, CLASSES, LR, RECORD, RESULTS, SCALE, TOLERANCE, E, G, batches, recorded


def computed(case):
    """Returns the results of a case by name."""
    margins, ratio = CASES[case]
    bank = MemoryBank(num_sampled(CLASSES, ratio), CLASSES, 0, 0, E, "", class_start=0)
    layer = ClassLayer(MarginLoss(margins, SCALE, E), bank, mx.cpu(), tile_classes=64, logits_cache_mb=256)
    optimizer = MemoryBankSGDOptimizer(None, 1 / G)
    losses, gradients, indices = [], [], []
    for features, labels in batches():
        index, _ = bank.sample(labels)
        softmax = layer.forward(mx.nd.array(features), labels, index, lambda statistics: statistics)
        losses.append(softmax.loss)
        gradients.append(layer.backward(softmax, optimizer, LR).asnumpy())
        indices.append(index)
    centers, momentum = bank.weight.asnumpy(), bank.weight_mom.asnumpy()
    return dict(zip(RESULTS, (np.array(losses), np.array(gradients), np.array(indices), centers, momentum)))


@pytest.mark.parametrize("case", CASES)
def test_the_record_is_what_the_layer_computes(case):
    result = computed(case)
    for name, values in recorded(case).items():
        np.testing.assert_allclose(result[name], values, **TOLERANCE, err_msg=name)


if __name__ == "__main__":
    results = {f"{case}.{name}": values for case in CASES for name, values in computed(case).items()}
    np.savez_compressed(RECORD, **results)
    print(f"{RECORD}: {RECORD.stat().st_size} bytes")
