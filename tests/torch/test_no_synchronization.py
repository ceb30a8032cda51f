"""A step reads no value from the device, except for the statistics that the ranks exchange.

Tensors on the device "meta" have shapes but no values: whatever needs a value, and so would wait for a GPU, raises an
error there.
"""

from functools import partial

import numpy as np
import pytest
import torch

from partial_fc.layer.center_states import center_widths
from partial_fc.layer.sampling import WeightIndexSampler, insert_positives, label_columns
from partial_fc_torch import AdaFace, ArcFace, CurricularFace, MagFace, PartialFC
from partial_fc_torch.collectives import default_collectives
from partial_fc_torch.layer.exchange import GlobalBatch, GlobalStatistics, LayerExchange
from partial_fc_torch.layer.gradients import DenseGradient, RowGradient, tiles_of_gradient
from partial_fc_torch.layer.optimizers import SGD, Adagrad, AdamW
from partial_fc_torch.layer.products import products_of
from partial_fc_torch.layer.rows import Centers
from partial_fc_torch.layer.step import MarginSoftmax
from partial_fc_torch.layer.stores import CenterStore

G, E, CLASSES = 16, 8, 300


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


class NoExchange(LayerExchange):
    """Of one rank, whose statistics are not needed."""

    def gather_batch(self, features, labels):
        return GlobalBatch(features, meta(G, 2), meta(G, dtype=torch.int64))

    def gather_targets(self, cosine):
        return cosine

    def gather_statistics(self, statistics, batch):
        return GlobalStatistics(batch, meta(G, dtype=torch.float64), None)

    def mean_loss(self, gathered, requires_positives, num_update):
        return 1.0

    def sum_gradient(self, gradient):
        return lambda: gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cache_bytes", [0, 13 << 10, 1 << 20])  # of none, some and all tiles
@pytest.mark.parametrize("sampled", [0, 100, CLASSES])
@pytest.mark.parametrize(
    "optimizer, kind", [(SGD(), ArcFace), (AdamW(), AdaFace), (Adagrad(), MagFace), (None, CurricularFace)]
)
def test_both_passes_and_the_update(sampled, cache_bytes, dtype, optimizer, kind):
    margin = kind().to("meta")
    exchange, store = NoExchange(default_collectives, CLASSES, E), CenterStore(CLASSES, torch.device("meta"))
    softmax = MarginSoftmax(exchange, store, 0, margin, products_of(dtype, margin.scale), 64, cache_bytes, CLASSES)
    weight, *states = center_widths(E, optimizer.states if optimizer else {}).items()
    centers = Centers(store.allocate(*weight), {name: store.allocate(name, width) for name, width in states})
    sample = partial(softmax.draw, centers, lambda labels: meta(sampled, dtype=torch.int64))
    step = softmax.forward(meta(G, E), None, sample, 1)
    assert bool(step.kept and step.kept.cached) == bool(cache_bytes and sampled)
    update = partial(optimizer.update, centers, learning_rate=0.1) if optimizer else DenseGradient(centers.weight)
    assert softmax.backward(step, update).shape == (G, E)
    if optimizer:
        apply_explicitly(softmax, step, update)


def apply_explicitly(softmax, step, update):
    """The same update by an explicit step."""
    rows = RowGradient(step.sampled)
    softmax.backward(step, rows)
    index, gradient = rows.in_order()
    assert gradient.shape == (len(index), E) == (len(step.sampled), E)
    for tile in tiles_of_gradient(step.sampled, gradient):
        update(tile)


def test_the_sample_of_a_step():
    layer = PartialFC(margin_softmax=ArcFace(), num_classes=CLASSES, embedding_size=E, sample_rate=0.1, device="cpu")
    labels = meta(G, dtype=torch.int64)
    index = layer.sample(labels)
    assert index.shape == (30,) and index.device.type == "meta"
    assert label_columns(labels, index, 0, torch).shape == (G,)


def test_only_the_exchange_of_statistics_waits():
    exchange = LayerExchange(default_collectives, CLASSES, E)
    exchange.agree(torch.zeros(G, E), torch.zeros(G, dtype=torch.int64))
    batch = exchange.gather_batch(meta(G, E), np.arange(G))
    assert batch.features.shape == (G, E) and batch.labels.shape == (G,)
    with pytest.raises(NotImplementedError, match="no data"):
        exchange.mean_loss(exchange.gather_statistics(meta(3, G), batch), True, 1)


@pytest.mark.parametrize("num_sample", [20, 64, 99])
def test_pytorch_samples_the_same_classes_as_numpy(num_sample):
    samplers = [WeightIndexSampler(num_sample, 100, rank=1) for _ in range(2)]
    for step in range(50):
        labels = np.random.default_rng(step).integers(0, 300, 20)
        drawn, order = (torch.from_numpy(places) for places in samplers[0].draw(len(labels)))
        index = insert_positives(drawn, order, torch.from_numpy(labels) - 100, 100, torch)
        assert index.sort().values.tolist() == samplers[1](labels)[0].tolist()
