"""Backbones in float16: dtypes, names and shapes; the error without a GPU; the check for finite gradients.

MXNet has no float16 convolutions on the CPU, so the tests do not run the backbones.
"""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np
import pytest

import default
from partial_fc.checkpoint.model_format import MXNET
from partial_fc_mxnet import build
from partial_fc_mxnet.ops.module_arrays import all_finite
from partial_fc_mxnet.symbol import NETWORKS, get_symbol
from partial_fc_mxnet.symbol.head import HEADS

# Parameters of the float32 head that do not belong to batch norms.
HEAD = ("pre_fc1_weight", "pre_fc1_bias", "conv_6dw7_7_conv2d_weight", "relu1_gamma")


def types(symbol: mx.sym.Symbol) -> tuple[dict[str, str], list[str]]:
    """Dtypes of parameters and statistics by name, without the input, and dtypes of the outputs."""
    arguments, outputs, statistics = symbol.infer_type(data="float32")
    by_name = dict(zip(symbol.list_arguments(), arguments))
    by_name.update(zip(symbol.list_auxiliary_states(), statistics))
    del by_name["data"]
    return {name: np.dtype(dtype).name for name, dtype in by_name.items()}, [np.dtype(dtype).name for dtype in outputs]


def batch_norms(symbol: mx.sym.Symbol) -> set[str]:
    nodes = json.loads(symbol.tojson())["nodes"]
    return {nodes[i[0]]["name"] for node in nodes if node["op"] == "BatchNorm" for i in node["inputs"][1:]}


@pytest.mark.parametrize("network", sorted(NETWORKS))
@pytest.mark.parametrize("net_output", sorted(HEADS))
def test_all_parameters_except_head_and_batch_norms_are_float16(network, net_output):
    symbol = get_symbol(network, embedding_size=32, net_output=net_output, net_se=True, net_act="prelu", fp16=True)
    parameters, outputs = types(symbol)
    float32 = batch_norms(symbol) | {name for name in HEAD if name in parameters}
    assert outputs == ["float32"]
    assert {name for name, dtype in parameters.items() if dtype == "float32"} == float32
    assert {name for name, dtype in parameters.items() if dtype == "float16"} == set(parameters) - float32
    assert {"conv0_weight", "conv_1_conv2d_weight"} & (set(parameters) - float32)


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_names_and_shapes_equal_those_of_float32(network):
    half, full = (get_symbol(network, embedding_size=32, fp16=fp16) for fp16 in (True, False))
    assert half.list_arguments() == full.list_arguments()
    assert half.list_auxiliary_states() == full.list_auxiliary_states()
    assert half.list_outputs() == full.list_outputs() == ["fc1_output"]
    assert half.infer_shape(data=(2, 3, 112, 112)) == full.infer_shape(data=(2, 3, 112, 112))
    assert set(types(full)[0].values()) == {"float32"}


def test_pixels_are_exact_in_float16():
    data = get_symbol("small", fp16=True).get_internals()["data_fp16_output"]
    pixels = np.arange(256, dtype=np.float32)
    normalized = data.eval(data=mx.nd.array(pixels))[0]
    assert normalized.dtype == np.float16
    np.testing.assert_array_equal(normalized.asnumpy().astype(np.float64), (pixels - 127.5) / 128)


def test_saved_symbol_is_float32():
    config = default.generate_config(network_name="r18", changes={"fp16": True})
    saved = build.build_symbol(config, False, MXNET)
    assert saved.tojson() == get_symbol("r18", config.embedding_size).tojson()
    assert "float16" not in saved.tojson()


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [None, 0, 199, 200, 401, 402, 449])
def test_all_finite_detects_one_value_among_hundreds_of_arrays(place, bad):
    arrays = [mx.nd.ones((3,), dtype="float16") for _ in range(402)] + [mx.nd.ones((2, 5)) for _ in range(48)]
    if place is not None:
        arrays[place][1] = bad
    assert all_finite(arrays) == (place is None)
