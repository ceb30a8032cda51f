"""Clipping by the global norm of the mean loss's gradient, for any number of ranks."""

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
import pytest
from layer import Batches, G, all_ranks, build_bank, initial_params, random_batches, ready_module

from partial_fc_mxnet import MarginLoss
from partial_fc_mxnet.ops.module_arrays import backbone, global_norm, gradients, parameters
from partial_fc_mxnet.updaters import ClippedUpdater

CLASSES, LR = 12, 0.1


def build(folder, max_norm):
    """Returns the module with the linear backbone, ready to train."""
    bank, loss = build_bank(CLASSES, 1.0, folder), MarginLoss((1.0, 0.0, 0.4), 16.0, 4)
    return ready_module(bank, loss, LR, max_grad_norm=max_norm)


def first_step(folder, max_norm):
    """Returns (the mean loss's gradient over all ranks, float64 by name; parameters after one update)."""
    module = build(folder, max_norm)
    module.forward_backward(next(Batches(*random_batches(CLASSES, 1))))
    local = {name: array.asnumpy().astype(np.float64) for name, array in gradients(module).items()}
    total = {name: all_ranks(grad[np.newaxis], f"sum.{name}") for name, grad in local.items()}
    module.update()
    # rescale_grad, R / G, turns the sum over the ranks into the mean loss's gradient.
    return (
        {name: grads.sum(axis=0) * hvd.size() / G for name, grads in total.items()},
        {name: array.asnumpy() for name, array in parameters(module).items()},
    )


@pytest.mark.parametrize("share", [0.1, 0.9, 2.0])
def test_update_uses_the_clipped_mean_gradient(share, tmp_path):
    gradient, _ = first_step(tmp_path, 0.0)
    norm = np.sqrt(sum(np.sum(np.square(grad)) for grad in gradient.values()))
    _, after = first_step(tmp_path, share * norm)
    for name, start in initial_params().items():
        start = start.asnumpy()
        decay = 5e-4 * start if name.endswith("_weight") else 0
        expected = start - LR * (min(share, 1) * gradient[name] + decay)
        np.testing.assert_allclose(after[name], expected, rtol=0, atol=1e-6, err_msg=name)
        every = all_ranks(after[name][np.newaxis], f"after.{name}")
        np.testing.assert_allclose(every, np.broadcast_to(after[name], every.shape), rtol=0, atol=1e-7)


def test_zero_gradients_stay_zero(tmp_path):
    module = build(tmp_path, 1.0)
    module.forward_backward(next(Batches(*random_batches(CLASSES, 1))))
    for gradient in gradients(module).values():
        gradient[:] = 0
    module.update()
    np.testing.assert_array_equal(parameters(module)["fc1_bias"].asnumpy(), initial_params()["fc1_bias"].asnumpy())


def test_second_init_optimizer_keeps_the_updater(tmp_path):
    module = build(tmp_path, 1.0)
    updater = backbone(module)._updater
    module.init_optimizer(optimizer_params={"learning_rate": 0.5})
    assert backbone(module)._updater is updater and isinstance(updater, ClippedUpdater)


SMALL_SHAPES = [(number % 7 + 1,) for number in range(450)]


@pytest.mark.world_size(1)
@pytest.mark.parametrize(
    "shapes, dtype, largest",
    [
        (SMALL_SHAPES, "float32", 1e10),
        (SMALL_SHAPES, "float16", 60000),
        ([(512, 20000)], "float32", 1),
        ([(10**7,)], "float32", 1),
    ],
    ids=["many", "many float16", "large", "long"],
)
def test_norm_of_many_and_of_large_arrays(shapes, dtype, largest):
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(shape).astype(dtype) for shape in shapes] + [np.full(3, largest, dtype)]
    expected = np.sqrt(sum(np.sum(np.square(value.astype(np.float64))) for value in values))
    norm = global_norm([mx.nd.array(value, dtype=dtype) for value in values])
    assert norm.dtype == np.float32 and norm.asscalar() == pytest.approx(expected, rel=1e-5)
