"""Reading a Module's statistics while its last step is running, and the check for finite gradients."""

import mxnet as mx
import numpy as np
import pytest

from partial_fc_mxnet.ops import module_arrays


@pytest.fixture
def module():
    """A module whose backward pass ends with a BatchNorm."""
    symbol = mx.sym.BatchNorm(mx.sym.Variable("data"), fix_gamma=False, name="bn")
    for number in range(3):
        symbol = mx.sym.FullyConnected(symbol, num_hidden=512, name=f"fc{number}")
    module = mx.mod.Module(mx.sym.MakeLoss(mx.sym.sum(symbol)), data_names=["data"], label_names=None)
    module.bind(data_shapes=[("data", (64, 8, 32, 32))])
    module.init_params(mx.init.Normal(0.05))
    return module


@pytest.mark.parametrize("read", [module_arrays.statistics, lambda module: module_arrays.export(module)[1]])
def test_statistics_are_those_of_the_last_step(module, read):
    batch = mx.io.DataBatch([mx.nd.random.normal(1, 1, (64, 8, 32, 32))])
    for step in range(1, 21):
        module.forward_backward(batch)
        module._params_dirty = True  # as after update()
        (statistic,) = (array.asnumpy() for name, array in read(module).items() if name == "bn_moving_mean")
        mean = batch.data[0].asnumpy().mean(axis=(0, 2, 3))
        assert abs(statistic - mean * (1 - 0.9**step)).max() < 1e-3, step


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [None, 0, 199, 200, 401, 402, 449])
def test_all_finite_detects_one_value_among_hundreds_of_arrays(place, bad):
    arrays = [mx.nd.ones((3,), dtype="float16") for _ in range(402)] + [mx.nd.ones((2, 5)) for _ in range(48)]
    if place is not None:
        arrays[place][1] = bad
    assert module_arrays.all_finite(arrays) == (place is None)
