"""The optimizers: weight decay through DistributedOptimizer, SGD of the memory bank, momentum that sums gradients."""

import pickle

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
import pytest

from partial_fc_mxnet import DistributedOptimizer, MemoryBankSGDOptimizer
from partial_fc_mxnet.optimizer import GradientSumSGD

hvd.init()


def symbol():
    data = mx.sym.Variable("data")
    body = mx.sym.FullyConnected(data, num_hidden=4, name="fc", flatten=True)
    body = mx.sym.BatchNorm(body, name="bn", fix_gamma=False)
    slow = mx.sym.Variable("slow_weight", lr_mult=0.5, wd_mult=0.0)
    return mx.sym.FullyConnected(body, slow, num_hidden=3, no_bias=True, name="slow", flatten=True)


def update_with_zero_gradients(optimizer):
    """Returns parameters that start at 1, after one update with zero gradients: only weight decay changes them."""
    module = mx.mod.Module(symbol(), label_names=None)
    module.bind([("data", (2, 5))])
    module.init_params()
    params, aux_params = module.get_params()
    module.set_params({name: mx.nd.ones_like(array) for name, array in params.items()}, aux_params)
    module.init_optimizer(kvstore=None, optimizer=optimizer)
    module.forward(mx.io.DataBatch([mx.nd.zeros((2, 5))]), is_train=True)
    module.backward([mx.nd.zeros((2, 3))])
    module.update()
    return {name: array.asnumpy().ravel()[0] for name, array in module.get_params()[0].items()}


@pytest.mark.parametrize("with_names", [True, False])
def test_biases_and_betas_have_no_decay(with_names):
    names = dict(enumerate(name for name in symbol().list_arguments() if name != "data"))
    arguments = {"sym": symbol(), "param_idx2name": names} if with_names else {}
    inner = mx.optimizer.SGD(learning_rate=0.1, wd=0.5, rescale_grad=0.5, **arguments)
    after = update_with_zero_gradients(DistributedOptimizer(inner))
    decayed = np.float32(1 - 0.1 * 0.5)
    assert (after["fc_weight"], after["bn_gamma"]) == pytest.approx((decayed, decayed))
    assert after["fc_bias"] == after["bn_beta"] == 1
    # Only an optimizer that was created with the symbol knows the symbol's wd_mult = 0.
    assert after["slow_weight"] == (1 if with_names else pytest.approx(decayed))


def test_multipliers_of_the_user_survive_new_names():
    inner = mx.optimizer.SGD(learning_rate=0.1, wd=0.5)
    inner.set_wd_mult({"fc_weight": 0.0})
    optimizer = DistributedOptimizer(inner, prefix="backbone.")
    optimizer.idx2name = {0: "fc_weight", 1: "fc_bias"}
    assert inner.idx2name == {0: "fc_weight", 1: "fc_bias"}
    assert inner.wd_mult == {"fc_weight": 0.0, "fc_bias": 0.0}
    optimizer.rescale_grad = 0.25
    assert inner.rescale_grad == 0.25
    assert pickle.loads(pickle.dumps(optimizer)).wd_mult == inner.wd_mult


def test_memory_bank_sgd_whose_momentum_sums_gradients():
    weight, grad, mom = mx.nd.ones((2, 3)), mx.nd.full((2, 3), 4), mx.nd.full((2, 3), 0.5)
    optimizer = MemoryBankSGDOptimizer(None, rescale_grad=0.25, momentum=0.9, wd=0.1, momentum_convention="gradients")
    optimizer.update(weight, grad, mom, learning_rate=0.2)
    np.testing.assert_allclose(mom.asnumpy(), 0.9 * 0.5 + 1 + 0.1, rtol=1e-6)
    np.testing.assert_allclose(weight.asnumpy(), 1 - 0.2 * 1.55, rtol=1e-6)


@pytest.mark.parametrize("dtype, error", [("float32", 1e-6), ("float16", 1e-3)])
@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_the_backbones_sgd_whose_momentum_sums_gradients(momentum, dtype, error):
    optimizer = GradientSumSGD(momentum, wd=0.1, rescale_grad=0.25, multi_precision=True)
    updater = mx.optimizer.get_updater(optimizer)
    weights, expected, sums = [mx.nd.ones((3,), dtype=dtype), mx.nd.ones((2, 2), dtype=dtype)], np.ones(2), np.zeros(2)
    for lr in (0.2, 0.02):  # after the change, a momentum that sums steps would make larger steps
        optimizer.set_learning_rate(lr)
        gradients = np.array([4.0, 8.0])
        arrays = [mx.nd.full(weight.shape, value, dtype=dtype) for weight, value in zip(weights, gradients)]
        updater([0, 1], arrays, weights)
        sums = momentum * sums + gradients / 4 + 0.1 * expected
        expected = expected - lr * sums
    for weight, value in zip(weights, expected):
        np.testing.assert_allclose(weight.asnumpy(), value, rtol=error)
        assert weight.dtype == np.dtype(dtype)


@pytest.mark.parametrize("lr_mult, expected", [(0.0, [0, 0]), (1.0, [0.5, -0.25])])
def test_momentum_of_frozen_parameters_and_of_clipped_gradients(lr_mult, expected):
    optimizer = GradientSumSGD(0.9, learning_rate=0.1, clip_gradient=0.5, wd=0.0, param_idx2name={0: "weight"})
    optimizer.set_lr_mult({"weight": lr_mult})
    updater, weight = mx.optimizer.get_updater(optimizer), mx.nd.ones((2,))
    updater([0], [mx.nd.array([3, -0.25])], [weight])
    np.testing.assert_allclose(updater.states[0].asnumpy(), expected)
    np.testing.assert_allclose(weight.asnumpy(), 1 - 0.1 * np.array(expected))
