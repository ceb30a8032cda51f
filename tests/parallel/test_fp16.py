"""Training with float16 parameters: loss scaling that all ranks agree on, and float32 master weights.

MXNet has no float16 products of matrices on the CPU, so the dense layer here is made of a product of numbers and a sum.

Shapes: D inputs, H hidden, E embedding, G global batch.
"""

import logging

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
import pytest
from layer import Batches, D, E, G, all_ranks, build_bank, build_module, random_batches

import default
from partial_fc.checkpoint import CheckpointFolder
from partial_fc.layer.loss_scale import GIVE_UP_AFTER, GROW_AFTER, START
from partial_fc_mxnet import (
    CallBackCheckpoint,
    CallBackModelSave,
    MarginLoss,
    MemoryBankSGDOptimizer,
    SampleDistributeModule,
    SavedTraining,
    collectives,
    get_scheduler,
)
from partial_fc_mxnet.io_profile import profile
from partial_fc_mxnet.ops.module_arrays import parameters
from partial_fc_mxnet.trainer import train

CLASSES, H = 12, 16
HALF = ("dense_weight", "relu_gamma")


def backbone(dtype):
    """D -> H in ``dtype``, then H -> E in float32."""
    body = mx.sym.expand_dims(mx.sym.Cast(mx.sym.Variable("data"), dtype=dtype), axis=2)
    body = mx.sym.broadcast_mul(body, mx.sym.Variable("dense_weight", shape=(1, D, H)))
    body = mx.sym.BatchNorm(mx.sym.sum(body, axis=1), fix_gamma=False, use_global_stats=True, name="bn")
    body = mx.sym.Cast(mx.sym.LeakyReLU(body, act_type="prelu", name="relu"), dtype="float32")
    return mx.sym.FullyConnected(body, num_hidden=E, name="fc1", flatten=True)


def start(seed=1):
    """Parameters and statistics, the same on every rank."""
    rng = np.random.default_rng(seed)
    arrays = {"dense_weight": rng.standard_normal((1, D, H)) * 0.3, "fc1_weight": rng.standard_normal((E, H)) * 0.3}
    arrays.update({"bn_gamma": np.ones(H), "relu_gamma": np.full(H, 0.25)})
    arrays.update({"bn_beta": np.zeros(H), "fc1_bias": np.zeros(E)})
    aux_params = {"bn_moving_mean": mx.nd.zeros(H), "bn_moving_var": mx.nd.ones(H)}
    return {name: mx.nd.array(array) for name, array in arrays.items()}, aux_params


def build(folder, dtype="float16", lr=0.1, s=16.0, max_norm=0.0):
    """The module over that backbone, ready to train."""
    bank, loss = build_bank(CLASSES, 1.0, folder), MarginLoss((1.0, 0.0, 0.4), s, E)
    _, params = build_module(bank, loss, lr)
    memory_optimizer = MemoryBankSGDOptimizer(get_scheduler([], lr, lr)[1], 1 / G)
    module = SampleDistributeModule(backbone(dtype), loss, bank, memory_optimizer, max_grad_norm=max_norm)
    module.bind([mx.io.DataDesc("data", (G // hvd.size(), D))])
    module.init_params(None, *start())
    module.init_optimizer(optimizer_params=params)
    return module


def batches(steps):
    return list(Batches(*random_batches(CLASSES, steps)))


def gradients(module):
    group = module._module._exec_group
    return {name: arrays[0] for name, arrays in zip(group.param_names, group.grad_arrays)}


def values(module):
    """The parameters' bits, copied."""
    return {name: array.asnumpy() for name, array in parameters(module._module).items()}


def step(module, batch):
    module.forward_backward(batch)
    module.update()
    return float(module.loss_cache.asscalar())


def assert_same_on_all_ranks(arrays):
    for name, array in arrays.items():
        every = all_ranks(array[np.newaxis], f"same.{name}")
        np.testing.assert_array_equal(every, np.broadcast_to(array, every.shape), err_msg=name)


def spoil(batch, rank, scale=1e-3):
    """Makes the images of one rank tiny: the gradient of so short an embedding is huge, its loss is ordinary."""
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
    # A rounding of the features (2^-11) moves a logit of s = 16 by 0.008, and the roundings of twenty steps add up.
    np.testing.assert_allclose(losses["float16"], losses["float32"], rtol=0, atol=0.05)
    assert losses["float16"] != losses["float32"]
    assert (module.loss_scale.scale, module.loss_scale.good_steps) == (256.0, 10)


def test_going_on_from_a_checkpoint_keeps_master_weights_and_loss_scale(tmp_path):
    folder = CheckpointFolder(collectives.gather("folder", str(tmp_path))[0], kept=1)
    whole, data = build(tmp_path), batches(8)
    whole.loss_scale.scale, whole.loss_scale.good_steps = 128.0, GROW_AFTER - 7
    for batch in data[:5]:
        step(whole, batch)
    CallBackCheckpoint(whole, folder, frequent=0).save(5)
    losses = [step(whole, batch) for batch in data[5:]]
    again = build(tmp_path)
    SavedTraining.newest(folder).restore(again, None)
    assert (again.num_update, again.loss_scale.scale, again.loss_scale.good_steps) == (5, 128.0, GROW_AFTER - 2)
    assert [step(again, batch) for batch in data[5:]] == losses
    assert again.loss_scale.scale == whole.loss_scale.scale == 256.0
    for name, array in values(whole).items():
        np.testing.assert_array_equal(values(again)[name], array, err_msg=name)


def test_what_is_float16_and_what_has_master_weights(tmp_path):
    module = build(tmp_path)
    module.loss_scale.scale = 128.0
    step(module, batches(1)[0])
    assert {name for name, array in values(module).items() if array.dtype == np.float16} == set(HALF)
    assert {name for name, array in gradients(module).items() if array.dtype == np.float16} == set(HALF)
    names = module._module._exec_group.param_names
    for index, state in module._module._updater.states.items():
        if names[index] in HALF:
            momentum, master = state
            assert momentum.dtype == master.dtype == np.float32
            half = values(module)[names[index]]
            np.testing.assert_array_equal(master.asnumpy().astype(np.float16), half)
            assert (master.asnumpy() != half).any()
    assert {array.dtype for params in module.get_export_params() for array in params.values()} == {np.float32}


def test_updates_below_a_rounding_add_up(tmp_path):
    module = build(tmp_path, lr=1e-4)
    params, aux_params = start()
    params["dense_weight"][:] = 1
    module._module.set_params(params, aux_params)
    module.loss_scale.scale = 256.0
    module.forward_backward(batches(1)[0])
    grads, weight, momentum = gradients(module), 1.0, 0.0
    for update in range(20):
        for array in grads.values():
            array[:] = 0
        grads["dense_weight"][:] = 256 / hvd.size()  # what a gradient of 1 in the mean over G images becomes
        module.update()
        momentum = 0.9 * momentum - 1e-4 * (1 + 5e-4 * weight)
        weight += momentum
        if update == 0:
            assert (values(module)["dense_weight"] == 1).all(), "a step was to be less than half a rounding"
    # float16 holds numbers below 1 to 2^-11, and 256 / 3 to as much of itself.
    np.testing.assert_allclose(values(module)["dense_weight"], weight, rtol=0, atol=2**-11)
    assert weight < 1 - 10 * 2**-11


@pytest.mark.parametrize("max_norm, expected", [(0.0, 2.5), (1.0, 1.0), (2.0**-18, 2.0**-18), (9.0, 2.5)])
def test_clipping_knows_the_loss_scale_and_loses_nothing(tmp_path, max_norm, expected):
    """The norm of the gradient is 2.5 without the scale; clipped in float16 itself, 2^-18 of it would vanish."""
    module = build(tmp_path, max_norm=max_norm)
    module.forward_backward(batches(1)[0])
    before = values(module)["fc1_bias"]
    for array in gradients(module).values():
        array[:] = 0
    # float16 and float32 gradients of lengths 1.5 and 2 in the mean over the images of all ranks. Not 1.8: the sum of
    # 14744 and 14744 is 14744 over Horovod's Gloo, which adds every other float16 number to itself as it should.
    scaled = module.loss_scale.scale / hvd.size()
    gradients(module)["relu_gamma"][:] = 1.5 * scaled / np.sqrt(H)
    gradients(module)["fc1_bias"][:] = 2 * scaled / np.sqrt(E)
    slope = module._module._exec_group.param_names.index("relu_gamma")
    module.update()
    momentum, _ = module._module._updater.states[slope]
    # 0.1 is the rate; float16 holds what a rank gave to 2^-11 of itself.
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
    for name in ("bn_beta", "fc1_bias"):  # what is left of an image without pixels
        parameters(module._module)[name][:] = 0
    before, states = values(module), module._module._updater.get_states()
    centers = module.memory_bank.weight.asnumpy()
    spoil(data[1], last)
    module.forward_backward(data[1])
    finite = [np.isfinite(array.asnumpy()).all() for array in gradients(module).values()]
    assert all(finite) == (hvd.rank() != last), "the overflow was to be on one rank only"
    module.update()

    for name, array in values(module).items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)
    assert module._module._updater.get_states() == states
    assert (module.loss_scale.scale, module.loss_scale.skipped) == (128.0, 1)
    # The step counts, for both schedules, and its centers have been updated.
    assert module.num_update == module._module._optimizer.num_update == 2
    assert (module.memory_bank.weight.asnumpy() != centers).any()
    lines = [record.getMessage() for record in caplog.records]
    told = "float16 overflow at update 2: step skipped, loss scale 256 -> 128"
    assert lines.count(told) == (hvd.rank() == 0)

    step(module, data[2])
    after = values(module)
    assert all((after[name] != before[name]).any() for name in after)
    assert_same_on_all_ranks(after)
    assert module.loss_scale.skipped == 0


@pytest.mark.world_size(2, 3)
def test_a_sum_that_overflows_is_skipped_where_no_summand_did(tmp_path):
    module = build(tmp_path)
    module.forward_backward(batches(1)[0])
    for array in gradients(module).values():
        array[:] = 0
    gradients(module)["dense_weight"][:] = 40000
    before = values(module)
    module.update()
    assert np.isinf(gradients(module)["dense_weight"].asnumpy()).all()
    np.testing.assert_array_equal(values(module)["dense_weight"], before["dense_weight"])
    assert module.loss_scale.scale == START / 2


@pytest.mark.world_size(2, 3)
def test_ranks_whose_sums_differ_agree_all_the_same(tmp_path):
    module = build(tmp_path)
    # Left out, the sum leaves on one rank what no other has: the worst that different roundings could do.
    module._module._updater._sum_gradients = lambda index, grad: None
    module.forward_backward(batches(1)[0])
    for array in gradients(module).values():
        array[:] = np.inf if hvd.rank() == 1 else 1
    before = values(module)
    module.update()
    np.testing.assert_array_equal(values(module)["dense_weight"], before["dense_weight"])
    assert module.loss_scale.scale == START / 2


def test_a_run_of_overflows_stops_every_rank(tmp_path):
    module, data = build(tmp_path, s=64.0), batches(1)[0]
    before = values(module)
    spoil(data, hvd.size() - 1, 1e-5)
    with pytest.raises(FloatingPointError) as error:
        for _ in range(GIVE_UP_AFTER + 1):
            step(module, data)
    text = "20 updates in a row overflowed float16 at update 20, the last with loss scale 1: lower lr"
    assert str(error.value).startswith(text)
    np.testing.assert_array_equal(values(module)["dense_weight"], before["dense_weight"])


def test_an_overflow_on_the_way_forward_is_told_at_once(tmp_path):
    module, data = build(tmp_path), batches(1)[0]
    if hvd.rank() == 0:
        data.data[0][:] = 1e5
    with pytest.raises(
        FloatingPointError,
        match=r"the loss is nan at update 1 \(non-finite features on rank.*\): .* or set fp16=False",
    ):
        step(module, data)


def test_fit_starts_equal_and_finds_a_scale(tmp_path):
    mx.random.seed(hvd.rank())
    bank, loss = build_bank(CLASSES, 1.0, tmp_path), MarginLoss((1.0, 0.0, 0.4), 64.0, E)
    built, params = build_module(bank, loss)
    module = SampleDistributeModule(backbone("float16"), loss, bank, built.memory_optimizer)
    seen = []
    module.fit(Batches(*random_batches(CLASSES, 12)), params, seen.append, mx.init.Xavier(), max_update=12)
    assert len(seen) == 12
    assert module.loss_scale.scale < START and module.loss_scale.good_steps > 0
    assert_same_on_all_ranks(values(module))


def test_a_training_goes_on_from_its_state(tmp_path):
    first, second, data = build(tmp_path), build(tmp_path), batches(8)
    for batch in data[:7]:  # some are skipped
        step(first, batch)
    second._module.set_params(*first.get_export_params())
    second._module._updater.set_states(first._module._updater.get_states())
    second._module._optimizer.begin_num_update = second._module._optimizer.num_update = first.num_update
    second.num_update = first.num_update
    for name in ("scale", "good_steps", "skipped"):
        setattr(second.loss_scale, name, getattr(first.loss_scale, name))
    for name in ("weight", "weight_mom"):
        getattr(second.memory_bank, name)[:] = getattr(first.memory_bank, name)
    assert step(first, data[7]) == step(second, data[7])
    for name, array in values(first).items():
        np.testing.assert_array_equal(values(second)[name], array, err_msg=name)
    assert vars(first.loss_scale) == vars(second.loss_scale)


def test_what_is_saved_runs_in_float32(tmp_path):
    module, batch = build(tmp_path), batches(1)[0]
    module.loss_scale.scale = 128.0
    step(module, batch)
    prefix = str(tmp_path / "model")
    CallBackModelSave(backbone("float32"), module, prefix, 0).save(1)
    module.forward(batch, is_train=False)
    features = module.get_outputs()[0].asnumpy()

    symbol, arg_params, aux_params = mx.model.load_checkpoint(prefix, 0)
    assert {array.dtype for params in (arg_params, aux_params) for array in params.values()} == {np.float32}
    saved = mx.mod.Module(symbol, label_names=None)
    saved.bind([mx.io.DataDesc("data", batch.data[0].shape)], for_training=False)
    saved.set_params(arg_params, aux_params)
    saved.forward(batch)
    assert {array.dtype for array in parameters(saved).values()} == {np.float32}
    # Hidden values of about 1, each rounded a few times to 2^-11 of itself.
    np.testing.assert_allclose(features, saved.get_outputs()[0].asnumpy(), rtol=0, atol=0.01)


@pytest.mark.skipif(mx.context.num_gpus() > 0, reason="a GPU has float16 convolutions")
def test_training_in_float16_is_refused_without_a_gpu_and_touches_nothing(tmp_path):
    config = default.generate_config(changes={"fp16": True, "models_root": str(tmp_path)})
    for start_work in (train, profile):
        with pytest.raises(collectives.JobError, match="no float16 convolutions on the CPU"):
            start_work(config)
    assert not list(tmp_path.iterdir())
