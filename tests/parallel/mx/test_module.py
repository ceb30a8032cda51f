"""SampleDistributeModule around the layer: collectives, invalid input, errors."""

import math

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
import pytest
from layer import Batches, D, E, G, OnlyForward, build_bank, build_module, initial_params, random_batches, ready_module

import default
from partial_fc.checkpoint.model_format import MXNET
from partial_fc.layer.sharding import shard_of
from partial_fc_mxnet import CallBackFinite, MarginLoss, build
from partial_fc_mxnet.ops import module_arrays
from recorded_calls import recorded


def bound_module(classes, tmp_path, ratio=1.0):
    return ready_module(build_bank(classes, ratio, tmp_path), MarginLoss(embedding_size=E))


def test_forward_gathers_features_and_labels_in_rank_order(tmp_path):
    module = bound_module(50, tmp_path)
    module.num_classes = 2**40 + 2
    images, labels = random_batches(50, 1)
    labels[0, ::2] += 2**40 - 48  # float32 would round all of these to 2^40
    features, gathered = module.forward(Batches(images, labels).next(), is_train=True)
    weight = initial_params()
    expected = images[0] @ weight["fc1_weight"].asnumpy().T + weight["fc1_bias"].asnumpy()
    np.testing.assert_allclose(features.asnumpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(gathered.asnumpy(), labels[0])
    assert gathered.dtype == np.int64
    assert module.forward(Batches(images, labels).next(), is_train=False) is None


@pytest.mark.world_size(1)
@pytest.mark.parametrize("label", [-1, 50])
def test_a_label_outside_the_classes_is_refused(label, tmp_path):
    module = bound_module(50, tmp_path)
    images, labels = random_batches(50, 1)
    labels[0, 0] = label
    with pytest.raises(ValueError, match=f"label {label} is not one of the 50 classes"):
        module.forward(Batches(images, labels).next(), is_train=True)


@pytest.mark.parametrize("make", [lambda margins: MarginLoss(margins, 64, E), lambda margins: OnlyForward(margins, 64)])
@pytest.mark.parametrize("margins", [(1.0, 0.5, 0.0), (1.0, 0.0, 0.4), (1.5, 0.0, 0.0), (3.0, 1.0, 0.0)])
def test_feature_equal_to_its_center_gives_finite_gradients(make, margins, tmp_path):
    bank = build_bank(6, 1.0, tmp_path)
    module, _ = build_module(bank, make(margins))
    start = bank.weight.copy()
    centers = np.concatenate(hvd.allgather_object(start.asnumpy(), name="centers"))
    for features in (centers, -centers):  # theta = 0 and theta = pi
        start.copyto(bank.weight)
        bank.weight_mom[:] = 0
        d_features, loss = module.backward_sample(mx.nd.array(features), np.arange(6))
        assert math.isfinite(loss)
        assert np.isfinite(d_features.asnumpy()).all()
        assert np.isfinite(bank.weight.asnumpy()).all()


def test_a_nan_loss_stops_every_rank_and_names_the_features(tmp_path):
    module = bound_module(50, tmp_path)
    features = mx.nd.ones((G, E))
    features[-1, 0] = np.nan
    before = module.memory_bank.weight.asnumpy()
    with pytest.raises(
        FloatingPointError, match=rf"the loss is nan at update 1 \(non-finite features on rank {hvd.size() - 1}\)"
    ):
        module.backward_all(features, np.zeros(G, np.int64))
    np.testing.assert_array_equal(module.memory_bank.weight.asnumpy(), before)


def test_a_nan_parameter_stops_training(tmp_path):
    module = bound_module(50, tmp_path)
    check = CallBackFinite(module, frequent=2)
    check(module.batch_end_param(None, 0, 2))
    params, _ = module.get_export_params()
    params["fc1_bias"][1] = np.inf
    module_arrays.backbone(module).set_params(params, {})
    check(module.batch_end_param(None, 0, 3))
    with pytest.raises(FloatingPointError, match="fc1_bias is not finite after update 4"):
        check(module.batch_end_param(None, 0, 4))


@pytest.mark.world_size(2, 3)
def test_unequal_batches_are_refused_on_every_rank(tmp_path):
    module, _ = build_module(build_bank(7, 1.0, tmp_path), MarginLoss(embedding_size=E))
    with pytest.raises(ValueError, match="batch sizes"):
        module.bind([mx.io.DataDesc("data", (2 + hvd.rank(), D))])


def test_an_embedding_of_another_size_is_refused(tmp_path):
    module, _ = build_module(build_bank(7, 1.0, tmp_path, embedding_size=E + 1), MarginLoss(embedding_size=E))
    with pytest.raises(ValueError, match="embedding_size"):
        module.bind([mx.io.DataDesc("data", (2, D))])


def test_buffers_are_allocated_once(tmp_path):
    module = bound_module(7, tmp_path)
    first = module.get_ndarray(mx.cpu(), "buffer", (2, 3))
    first[:] = 5
    assert module.get_ndarray(mx.cpu(), "buffer", (2, 3)) is first
    copied = module.get_ndarray2(mx.cpu(), "buffer", mx.nd.ones((2, 3)))
    assert copied is first
    assert (first.asnumpy() == 1).all()
    assert module.get_ndarray(mx.cpu(), "buffer", (2, 4)).shape == (2, 4)


def test_broadcast_parameters_copies_from_rank_0(tmp_path):
    params = {"b": mx.nd.full((2,), hvd.rank() + 5), "a": mx.nd.full((3,), hvd.rank())}
    bound_module(7, tmp_path).broadcast_parameters(params)
    assert params["a"].asnumpy().tolist() == [0, 0, 0]
    assert params["b"].asnumpy().tolist() == [5, 5]


def test_callbacks_receive_loss_epoch_and_update(tmp_path):
    received = []
    module, params = build_module(build_bank(7, 1.0, tmp_path), MarginLoss(embedding_size=E))
    module.fit(Batches(*random_batches(7, 2)), params, [received.append], mx.init.Xavier(), max_update=3)
    assert [(p.num_epoch, p.num_update) for p in received] == [(0, 1), (0, 2), (1, 3)]
    assert received[0].loss.shape == (1,)
    assert module.grad_cache.shape == (G, E)


def test_every_setting_reaches_its_object(tmp_path, monkeypatch):
    """Each value differs from its default and from the other values."""
    names = ("MemoryBank", "SampleDistributeModule", "MarginLoss", "MemoryBankSGDOptimizer", "get_symbol")
    banks, modules, margins, optimizers, symbols = (recorded(monkeypatch, build, name) for name in names)
    bank_args = {"embedding_size": 16, "seed": 5, "sampling_correction": True}
    module_args = {"tile_classes": 64, "logits_cache_mb": 7, "max_grad_norm": 3.0, "network": "r18"}
    margin_args = {"margins": (1.1, 0.3, 0.2), "loss_s": 30.0, "interclass_filtering_threshold": 0.4}
    symbol_args = {"net_se": True, "net_act": "relu", "net_output": "E", "bn_mom": 0.8}
    changes = {"num_classes": 41, "sample_ratio": [0.5, 0.2], "bank_folder": str(tmp_path), "bank_on_gpu": False}
    changes |= {"backbone_lr": 0.3, "memory_bank_lr": 0.7, "momentum": 0.85, "wd": 0.002, "debug": True}
    changes |= {"batch_size": 6, "lr_steps": [], "max_update": 4}
    changes |= {**bank_args, **module_args, **margin_args, **symbol_args}
    settings = default.generate_config(changes=changes, trainer="mxnet")
    model_format = MXNET._replace(eps=1e-3, momentum_convention="gradients")
    framework, rank, size = build.MXNetFramework(), hvd.rank(), hvd.size()
    bank = framework.build_bank(settings, f"{tmp_path}/centers")
    module, params = framework.build_module(settings, lambda num_update: num_update / 10, bank, model_format)
    shard = shard_of(41, rank, size)
    bank_args |= {"num_sample": shard.size // 2, "num_local": shard.size, "class_start": shard.start}
    bank_args |= {"rank": rank, "local_rank": hvd.local_rank()}
    bank_args |= {"prefix": f"{tmp_path}/centers", "gpu": False, "folder": str(tmp_path)}
    assert banks == [bank_args]
    ((module_call,), (loss,), (optimizer,), (symbol,)) = modules, margins, optimizers, symbols
    assert module_call.items() >= {**module_args, "memory_bank": bank, "model_format": model_format}.items()
    assert loss == {**margin_args, "embedding_size": 16}
    format_args = {"eps": model_format.eps, "pixel_scale": model_format.pixel_scale, "fp16": False}
    assert symbol == {**symbol_args, **format_args, "network": "r18", "embedding_size": 16}
    assert optimizer.pop("lr_scheduler")(2) == pytest.approx(0.7 * 0.2)
    rates = {"momentum": 0.85, "wd": 0.002}
    assert optimizer == {**rates, "rescale_grad": 1 / (6 * size), "momentum_convention": "gradients"}
    assert params.pop("lr_scheduler")(2) == pytest.approx(0.3 * 0.2)
    assert params == {**rates, "learning_rate": 0.3, "rescale_grad": 1 / 6}
