"""A step reads no value from the device, except for the statistics that the ranks exchange.

Tensors on the device "meta" have shapes but no values: whatever needs a value, and so would wait for a GPU, raises an
error there.
"""

import numpy as np
import pytest
import torch

from partial_fc.layer.sampling import WeightIndexSampler, insert_positives, label_columns
from partial_fc.layer.sgd import SGDParams
from partial_fc_torch import ArcFace, PartialFC
from partial_fc_torch.collectives import default_collectives
from partial_fc_torch.layer.center_gradients import DenseGradient, SGDUpdate
from partial_fc_torch.layer.class_layer import StepCenters
from partial_fc_torch.layer.exchange import GlobalBatch, LayerExchange
from partial_fc_torch.layer.tiled_softmax import TiledMarginSoftmax

G, E, CLASSES = 16, 8, 300
PARAMS = SGDParams(learning_rate=0.1, momentum=0.9, wd=5e-4, rescale_grad=1 / G, momentum_convention="gradients")


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
@pytest.mark.parametrize("sampled", [100, CLASSES])
def test_both_passes_of_the_softmax_and_the_update(sampled, cache_bytes, dtype):
    softmax = TiledMarginSoftmax(ArcFace(), 64, cache_bytes, dtype)
    weight, columns, index = meta(CLASSES, E), meta(G, dtype=torch.int64), meta(sampled, dtype=torch.int64)
    for update in (SGDUpdate(weight, meta(CLASSES, E), PARAMS), DenseGradient(weight, 1 / G)):
        state, statistics = softmax.forward(meta(G, E), weight, columns, index)
        assert statistics.shape == (3, G) and bool(state.cached) == bool(cache_bytes)
        assert softmax.backward(state, weight, meta(G, dtype=torch.float64), update).shape == (G, E)


def test_the_sample_of_a_step():
    layer = PartialFC(margin_softmax=ArcFace(), num_classes=CLASSES, embedding_size=E, sample_rate=0.1, device="cpu")
    labels = meta(G, dtype=torch.int64)
    index = layer.sample(labels)
    assert index.shape == (30,) and index.device.type == "meta"
    assert label_columns(labels, index, 0, torch).shape == (G,)


def test_a_rank_without_classes():
    layer = PartialFC(margin_softmax=ArcFace(), num_classes=CLASSES, embedding_size=E, device="meta")._layer
    batch = GlobalBatch(meta(G, E), meta(G, 2), meta(G, dtype=torch.int64))
    state, statistics = layer._own_statistics(batch, StepCenters(torch.empty(0, E), None, batch.labels))
    assert state is None and (statistics.shape, statistics.device.type) == ((3, G), "meta")


def test_only_the_exchange_of_statistics_waits():
    exchange = LayerExchange(default_collectives, CLASSES, E)
    exchange.agree(torch.zeros(G, E), torch.zeros(G, dtype=torch.int64))
    batch = exchange.gather_batch(meta(G, E), np.arange(G), 0)
    assert batch.features.shape == (G, E) and batch.labels.shape == (G,)
    with pytest.raises(NotImplementedError, match="no data"):
        exchange.gather_statistics(meta(3, G), batch)


@pytest.mark.parametrize("num_sample", [20, 64, 99])
def test_pytorch_samples_the_same_classes_as_numpy(num_sample):
    samplers = [WeightIndexSampler(num_sample, 100, rank=1) for _ in range(2)]
    for step in range(50):
        labels = np.random.default_rng(step).integers(0, 300, 20)
        drawn, order = (torch.from_numpy(places) for places in samplers[0].draw(len(labels)))
        index = insert_positives(drawn, order, torch.from_numpy(labels) - 100, 100, torch)
        assert index.sort().values.tolist() == samplers[1](labels)[0].tolist()
