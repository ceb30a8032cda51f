"""The layer equals the textbook form, the baseline of benchmarks/layer.py, over 20 steps."""

import functools

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
import pytest
from layer import D, all_ranks, build_bank

from benchmarks.textbook_mxnet import TextbookModule
from oracle import MARGINS
from partial_fc_mxnet import MarginLoss, MemoryBankSGDOptimizer, SampleDistributeModule, get_scheduler

STEPS, CLASSES, EMBEDDING, BATCH = 20, 600, 64, 24


def trajectory(kind, name, ratio, folder, **tiling):
    """Returns the losses of 20 steps, and the centers, momentum and backbone after them."""
    bank = build_bank(CLASSES, ratio, folder, embedding_size=EMBEDDING)
    backbone, memory = get_scheduler([12], 0.1, 0.1)
    symbol = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=EMBEDDING, name="fc1")
    optimizer = MemoryBankSGDOptimizer(memory, 1.0 / BATCH)
    module = kind(symbol, MarginLoss(MARGINS[name], 16, EMBEDDING), bank, optimizer, **tiling)
    if kind is TextbookModule:  # its own sample uses np.random, and would select other classes
        module.sample = lambda labels: bank.sample(labels)[0]
    batch = BATCH // hvd.size()
    module.bind([mx.io.DataDesc("data", (batch, D))])
    weight = np.random.default_rng(1).standard_normal((EMBEDDING, D)) * 0.3
    params = {"fc1_weight": mx.nd.array(weight), "fc1_bias": mx.nd.zeros(EMBEDDING)}
    module.init_params(arg_params=params, aux_params={})
    module.init_optimizer(optimizer_params={"learning_rate": 0.1, "lr_scheduler": backbone, "momentum": 0.9})
    rng, losses = np.random.default_rng(2), []
    for _ in range(STEPS):
        images, labels = rng.standard_normal((BATCH, D)), rng.integers(0, CLASSES, BATCH)
        local = slice(hvd.rank() * batch, (hvd.rank() + 1) * batch)
        batch_labels = mx.nd.array(labels[local], dtype="int64")
        module.forward_backward(mx.io.DataBatch([mx.nd.array(images[local])], [batch_labels]))
        module.update()
        losses.append(float(module.loss_cache.asscalar()))
    params, _ = module.get_export_params()
    centers = [all_ranks(array.asnumpy(), "centers") for array in (bank.weight, bank.weight_mom)]
    return {"losses": losses, "centers": centers[0], "mom": centers[1], "weight": params["fc1_weight"].asnumpy()}


@pytest.fixture(scope="module")
def textbook(tmp_path_factory):
    """Returns a function (loss, sample ratio) -> the textbook's trajectory, computed once."""
    return functools.cache(lambda name, ratio: trajectory(TextbookModule, name, ratio, tmp_path_factory.mktemp("bank")))


@pytest.mark.parametrize("name", ["arcface", "cosface", "combined"])
@pytest.mark.parametrize("ratio", [1.0, 0.3])
# A rank tiles only its own classes, so the slow case of many small tiles runs on a single rank.
@pytest.mark.parametrize(
    "tiling",
    [
        {},
        pytest.param({"tile_classes": 7}, marks=pytest.mark.world_size(1)),
        {"tile_classes": 64, "logits_cache_mb": 0},
    ],
)
def test_equals_the_textbook_over_20_steps(name, ratio, tiling, textbook, tmp_path):
    expected = textbook(name, ratio)
    result = trajectory(SampleDistributeModule, name, ratio, tmp_path, **tiling)
    # Another order of float32 additions differs by 6e-8 a step; 20 large steps magnify the difference.
    for part in expected:
        np.testing.assert_allclose(result[part], expected[part], rtol=1e-4, atol=1e-5, err_msg=part)
