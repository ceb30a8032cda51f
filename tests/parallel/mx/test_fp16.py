"""Training with float16 parameters: the same loss scale on all ranks, and float32 master weights.

MXNet has no float16 matrix product on the CPU, so the dense layer is an elementwise product and a sum.

Shapes: D inputs, H hidden, E embedding, G global batch.
"""

import logging

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
import pytest
from layer import Batches, D, E, all_ranks, build_bank, build_module, random_batches, ready_module

import default
from partial_fc.checkpoint import CheckpointFolder
from partial_fc.distributed.errors import JobError
from partial_fc.layer.loss_scale import GROW_AFTER, START
from partial_fc.training import trainer
from partial_fc.training.profiling import io_profile
from partial_fc_mxnet import CallBackCheckpoint, CallBackModelSave, MarginLoss, SavedTraining
from partial_fc_mxnet.build import MXNetFramework
from partial_fc_mxnet.ops import module_arrays

CLASSES, H = 12, 16


def backbone(dtype):
    """Returns a network D -> H in ``dtype``, then H -> E in float32."""
    body = mx.sym.expand_dims(mx.sym.Cast(mx.sym.Variable("data"), dtype=dtype), axis=2)
    body = mx.sym.broadcast_mul(body, mx.sym.Variable("dense_weight", shape=(1, D, H)))
    body = mx.sym.BatchNorm(mx.sym.sum(body, axis=1), fix_gamma=False, use_global_stats=True, name="bn")
    body = mx.sym.Cast(mx.sym.LeakyReLU(body, act_type="prelu", name="relu"), dtype="float32")
    return mx.sym.FullyConnected(body, num_hidden=E, name="fc1", flatten=True)


def start(seed=1):
    """Returns parameters and statistics, the same on every rank."""
    rng = np.random.default_rng(seed)
    arrays = {"dense_weight": rng.standard_normal((1, D, H)) * 0.3, "fc1_weight": rng.standard_normal((E, H)) * 0.3}
    arrays.update({"bn_gamma": np.ones(H), "relu_gamma": np.full(H, 0.25)})
    arrays.update({"bn_beta": np.zeros(H), "fc1_bias": np.zeros(E)})
    aux_params = {"bn_moving_mean": mx.nd.zeros(H), "bn_moving_var": mx.nd.ones(H)}
    return {name: mx.nd.array(array) for name, array in arrays.items()}, aux_params


def build(folder, dtype="float16", lr=0.1, s=16.0, max_norm=0.0):
    """Returns the module over the backbone, ready to train."""
    bank, loss = build_bank(CLASSES, 1.0, folder), MarginLoss((1.0, 0.0, 0.4), s, E)
    return ready_module(bank, loss, lr, backbone(dtype), *start(), max_grad_norm=max_norm)


def batches(steps):
    return list(Batches(*random_batches(CLASSES, steps)))


def values(module):
    """Returns copies of the parameters."""
    return {name: array.asnumpy() for name, array in module_arrays.parameters(module).items()}


def set_gradients(module, **gradients):
    """Replaces the gradients of the last backward pass, by default with zeros."""
    for name, array in module_arrays.gradients(module).items():
        array[:] = gradients.get(name, 0)


def step(module, batch):
    module.forward_backward(batch)
    module.update()
    return float(module.loss_cache.asscalar())


def assert_same_on_all_ranks(arrays):
    for name, array in arrays.items():
        gathered = all_ranks(array[np.newaxis], f"same.{name}")
        np.testing.assert_array_equal(gathered, np.broadcast_to(array, gathered.shape), err_msg=name)


def shrink_images(batch, rank, scale=1e-3):
    """Scales down one rank's images: a very short embedding has a huge gradient, but an ordinary loss."""
    if hvd.rank() == rank:
        batch.data[0][:] *= scale


def test_float16_parameters_train_like_float32_ones(tmp_path):
    losses = {}
    for dtype in ("float32", "float16"):
        module = build(tmp_path, dtype)
        assert (module.loss_scale is None) == (dtype == "float32")
        if module.loss_scale is not None:
            module.loss_scale.scale, module.loss_scale.good_steps = 128.0, GROW_AFTER - 10
        losses[dtype] = [step(module, batch) for batch in batches(20)]
    # A feature's rounding (2^-11) changes a logit at s = 16 by 0.008, and the roundings of twenty steps add up.
    np.testing.assert_allclose(losses["float16"], losses["float32"], rtol=0, atol=0.05)
    assert losses["float16"] != losses["float32"]
    assert (module.loss_scale.scale, module.loss_scale.good_steps) == (256.0, 10)


def test_a_checkpoint_restores_master_weights_and_loss_scale(folder):
    checkpoints = CheckpointFolder(folder, kept=1)
    first, data = build(folder), batches(8)
    first.loss_scale.scale, first.loss_scale.good_steps = 128.0, GROW_AFTER - 7
    for batch in data[:5]:
        step(first, batch)
    CallBackCheckpoint(first, checkpoints, frequent=0).save(5)
    losses = [step(first, batch) for batch in data[5:]]
    resumed = build(folder)
    SavedTraining.newest(checkpoints, first.collectives).restore(resumed, None)
    assert (resumed.num_update, resumed.loss_scale.scale, resumed.loss_scale.good_steps) == (5, 128.0, GROW_AFTER - 2)
    assert [step(resumed, batch) for batch in data[5:]] == losses
    assert resumed.loss_scale.scale == first.loss_scale.scale == 256.0
    for name, array in values(first).items():
        np.testing.assert_array_equal(values(resumed)[name], array, err_msg=name)


def test_updates_smaller_than_a_rounding_add_up(tmp_path):
    module = build(tmp_path, lr=1e-4)
    params, aux_params = start()
    params["dense_weight"][:] = 1
    module_arrays.backbone(module).set_params(params, aux_params)
    module.loss_scale.scale = 256.0
    module.forward_backward(batches(1)[0])
    weight, momentum = 1.0, 0.0
    for update in range(20):
        set_gradients(module, dense_weight=256 / hvd.size())  # a gradient of 1 in the mean over G images
        module.update()
        momentum = 0.9 * momentum - 1e-4 * (1 + 5e-4 * weight)
        weight += momentum
        if update == 0:
            assert (values(module)["dense_weight"] == 1).all(), "a step must be less than half a rounding"
    # float16 rounds numbers below 1 by up to 2^-11, and 256 / 3 with the same relative error.
    np.testing.assert_allclose(values(module)["dense_weight"], weight, rtol=0, atol=2**-11)
    assert weight < 1 - 10 * 2**-11


@pytest.mark.parametrize("max_norm, expected", [(0.0, 2.5), (1.0, 1.0), (2.0**-18, 2.0**-18), (9.0, 2.5)])
def test_clipping_accounts_for_the_loss_scale_and_keeps_precision(tmp_path, max_norm, expected):
    """Without the loss scale the gradient's norm is 2.5; clipped to 2^-18 in float16, it would underflow."""
    module = build(tmp_path, max_norm=max_norm)
    module.forward_backward(batches(1)[0])
    before = values(module)["fc1_bias"]
    # The mean over all images has a float16 gradient of norm 1.5 and a float32 gradient of norm 2. Not 1.8, for which
    # Horovod's Gloo computes 14744 + 14744 = 14744 in float16.
    scaled = module.loss_scale.scale / hvd.size()
    set_gradients(module, relu_gamma=1.5 * scaled / np.sqrt(H), fc1_bias=2 * scaled / np.sqrt(E))
    slope = module_arrays.parameter_names(module).index("relu_gamma")
    module.update()
    momentum, _ = module_arrays.backbone(module)._updater.states[slope]
    # 0.1 is the learning rate; the gradient of a rank is rounded to 2^-11 in float16.
    moved = 0.1 * (1.5 / 2.5 * expected / np.sqrt(H) + 5e-4 * 0.25)
    np.testing.assert_allclose(momentum.asnumpy(), -moved, rtol=2e-3)
    np.testing.assert_allclose(
        before - values(module)["fc1_bias"], 0.1 * 2 / 2.5 * expected / np.sqrt(E), rtol=2e-3, atol=1e-8
    )


def test_an_overflow_on_one_rank_is_skipped_on_all(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    module, data, last = build(tmp_path), batches(4), hvd.size() - 1
    module.loss_scale.scale = 256.0
    step(module, data[0])
    for name in ("bn_beta", "fc1_bias"):  # so that the embedding of tiny images is tiny
        module_arrays.parameters(module)[name][:] = 0
    updater = module_arrays.backbone(module)._updater
    before, states = values(module), updater.get_states()
    centers = module.memory_bank.weight.asnumpy()
    shrink_images(data[1], last)
    module.forward_backward(data[1])
    finite = [np.isfinite(array.asnumpy()).all() for array in module_arrays.gradients(module).values()]
    assert all(finite) == (hvd.rank() != last), "the overflow must be on one rank only"
    module.update()

    for name, array in values(module).items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)
    assert updater.get_states() == states
    assert (module.loss_scale.scale, module.loss_scale.skipped) == (128.0, 1)
    # The update counts in both schedules, and the centers have been updated.
    assert module.num_update == module_arrays.backbone(module)._optimizer.num_update == 2
    assert (module.memory_bank.weight.asnumpy() != centers).any()
    lines = [record.getMessage() for record in caplog.records]
    message = "float16 overflow at update 2: step skipped, loss scale 256 -> 128"
    assert lines.count(message) == (hvd.rank() == 0)

    step(module, data[2])
    after = values(module)
    assert all((after[name] != before[name]).any() for name in after)
    assert_same_on_all_ranks(after)
    assert module.loss_scale.skipped == 0


@pytest.mark.world_size(2, 3)
@pytest.mark.parametrize("summed", [True, False])
def test_all_ranks_skip_a_sum_that_overflows_on_one(summed, tmp_path):
    """Either the sum of finite gradients overflows; or, without a sum, one rank's gradient is infinite."""
    module = build(tmp_path)
    if not summed:
        module_arrays.backbone(module)._updater._sum_gradients = lambda index, grad: None
    module.forward_backward(batches(1)[0])
    for array in module_arrays.gradients(module).values():
        array[:] = 40000 if summed else np.inf if hvd.rank() == 1 else 1
    before = values(module)
    module.update()
    assert not summed or np.isinf(module_arrays.gradients(module)["dense_weight"].asnumpy()).all()
    np.testing.assert_array_equal(values(module)["dense_weight"], before["dense_weight"])
    assert module.loss_scale.scale == START / 2


def test_fit_starts_with_equal_parameters_and_adapts_the_scale(tmp_path):
    mx.random.seed(hvd.rank())
    bank, loss = build_bank(CLASSES, 1.0, tmp_path), MarginLoss((1.0, 0.0, 0.4), 64.0, E)
    module, params = build_module(bank, loss, symbol=backbone("float16"))
    params_received = []
    module.fit(Batches(*random_batches(CLASSES, 12)), params, params_received.append, mx.init.Xavier(), max_update=12)
    assert len(params_received) == 12
    assert module.loss_scale.scale < START and module.loss_scale.good_steps > 0
    assert_same_on_all_ranks(values(module))


@pytest.mark.parametrize("first, second", [("float32", "float16"), ("float16", "float32")])
def test_a_training_goes_on_in_the_other_precision(first, second, tmp_path):
    """The training resumes with the float32 weights, not with rounded weights."""
    one, other = build(tmp_path, first), build(tmp_path, second)
    for module in (one, other):
        if module.loss_scale:
            module.loss_scale.scale = 128.0
    for batch in batches(3):
        step(one, batch)
    other.restore({**one.parameters(), **one.statistics()}, 3)
    single, half = (module.parameters() for module in ((one, other) if first == "float32" else (other, one)))
    halved = [name for name in single if f"{name}0" in half]
    assert len(halved) == 2 and not any(name.endswith((":0", ":1")) for name in single)
    for name in halved:  # the momentum of dense and relu
        weight = f"arg:{name.split(':')[1]}"
        np.testing.assert_array_equal(half[f"{name}0"], single[name])
        np.testing.assert_array_equal(half[f"{name}1"], single[weight])
        assert (single[weight] != half[weight]).any()


def test_a_saved_model_runs_in_float32(tmp_path):
    module, batch = build(tmp_path), batches(1)[0]
    module.loss_scale.scale = 128.0
    step(module, batch)
    prefix = hvd.broadcast_object(str(tmp_path / "model"), name="prefix")  # rank 0 writes
    CallBackModelSave(backbone("float32"), module, prefix, 0).save(1)
    module.forward(batch, is_train=False)
    features = module.get_outputs()[0].asnumpy()

    symbol, arg_params, aux_params = mx.model.load_checkpoint(prefix, 0)
    assert {array.dtype for params in (arg_params, aux_params) for array in params.values()} == {np.float32}
    saved = mx.mod.Module(symbol, label_names=None)
    saved.bind([mx.io.DataDesc("data", batch.data[0].shape)], for_training=False)
    saved.set_params(arg_params, aux_params)
    saved.forward(batch)
    assert {array.dtype for array in module_arrays.parameters(saved).values()} == {np.float32}
    # Hidden values are about 1, each rounded a few times with a relative error of 2^-11.
    np.testing.assert_allclose(features, saved.get_outputs()[0].asnumpy(), rtol=0, atol=0.01)


@pytest.mark.skipif(mx.context.num_gpus() > 0, reason="a GPU has float16 convolutions")
def test_training_in_float16_without_a_gpu_is_refused_and_writes_nothing(tmp_path):
    config = default.generate_config(changes={"fp16": True, "models_root": str(tmp_path)})
    for command in (trainer.train, io_profile.profile):
        with pytest.raises(JobError, match="no float16 convolutions on the CPU"):
            command(config, MXNetFramework())
    assert not list(tmp_path.iterdir())
