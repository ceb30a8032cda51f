"""Conversion of weights between MXNet and PyTorch; tests/torch and tests/mx compare the names with the networks."""

import numpy as np
import pytest

from partial_fc.checkpoint.backbone_layers import UNITS
from partial_fc.checkpoint.torch_names import to_mxnet, to_torch, torch_names

NETWORKS = [*UNITS, "mbf", "small"]


def weights(network):
    """An array of 5 numbers for every name."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(5, np.float32) for name in torch_names(network)}
    return {**arrays, "arg:fc1_gamma": np.ones(5, np.float32)}


@pytest.mark.parametrize("network", NETWORKS)
def test_weights_that_go_there_and_back_are_the_same(network):
    arrays = weights(network)
    state = to_torch(network, arrays)
    assert len(state) == len(arrays) + sum(name.endswith("_moving_var") for name in arrays)
    back = to_mxnet(network, state)
    first, *others = arrays
    assert list(back) == [first, *others]
    for name in others:
        np.testing.assert_array_equal(back[name], arrays[name])
    np.testing.assert_array_max_ulp(back[first], arrays[first], 1)
    assert all(array.dtype == np.float32 for array in back.values())


def test_the_first_convolution_has_the_factor_of_the_pixels():
    """MXNet divides pixels by 128, PyTorch by 127.5."""
    arrays = weights("r18")
    state = to_torch("r18", arrays)
    np.testing.assert_allclose(state["conv1.weight"] / 127.5, arrays["arg:conv0_weight"] / 128, rtol=1e-6)


def test_the_scale_of_the_embedding_is_1():
    arrays = {**weights("small"), "arg:fc1_gamma": np.full(5, 0.5, np.float32)}  # MXNet does not use it
    state = to_torch("small", arrays)
    assert (state["features.weight"] == 1).all() and state["features.num_batches_tracked"] == 0
    with pytest.raises(ValueError, match="features.weight is not 1 everywhere, but MXNet's small has no such scale"):
        to_mxnet("small", {**state, "features.weight": arrays["arg:fc1_gamma"]})


def test_weights_of_another_network_are_refused_with_the_first_names():
    with pytest.raises(
        ValueError, match="it lacks arg:stage1_unit3_bn1_gamma, .* and 117 others: these are weights of ano"
    ):
        to_torch("r34", weights("r18"))
    with pytest.raises(
        ValueError, match="it has the unexpected arg:stage1_unit3_bn1_gamma, .*: these are weights of ano"
    ):
        to_torch("r18", weights("r34"))
    both = "it lacks conv1.weight, bn1.weight, bn1.bias and .* others and has the unexpected layers.0.layers.0.weight, "
    with pytest.raises(ValueError, match=both):
        to_mxnet("r18", to_torch("mbf", weights("mbf")))


def test_a_network_of_one_trainer_is_refused():
    with pytest.raises(ValueError, match="rx50 is not a network of both trainers"):
        torch_names("rx50")
