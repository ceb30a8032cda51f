"""The backbones: names, shapes, dtypes, initial values, forward and backward pass.

MXNet has no float16 convolutions on the CPU, so the tests do not run backbones in float16.
"""

import json

import mxnet as mx
import numpy as np
import pytest
from symbol_arrays import shapes_of

import default
from partial_fc.checkpoint.model_format import MXNET
from partial_fc_mxnet import build
from partial_fc_mxnet.ops.module_arrays import gradients, parameters
from partial_fc_mxnet.symbol import NETWORKS, get_symbol
from partial_fc_mxnet.symbol.head import HEADS

# Parameters of the float32 head that do not belong to batch norms.
HEAD = ("pre_fc1_weight", "pre_fc1_bias", "conv_6dw7_7_conv2d_weight", "relu1_gamma")
XAVIER = {"rnd_type": "gaussian", "factor_type": "out", "magnitude": 2}


def dtypes(symbol: mx.sym.Symbol) -> dict[str, str]:
    """Dtypes of parameters and statistics by name."""
    arguments, _, statistics = symbol.infer_type(data="float32")
    by_name = dict(zip(symbol.list_arguments() + symbol.list_auxiliary_states(), arguments + statistics))
    return {name: np.dtype(dtype).name for name, dtype in by_name.items() if name != "data"}


def bound_module(symbol: mx.sym.Symbol, batch: int = 2, size: int = 112) -> mx.mod.Module:
    module = mx.mod.Module(symbol, data_names=["data"], label_names=None, context=mx.cpu())
    module.bind(data_shapes=[("data", (batch, 3, size, size))], for_training=True)
    module.init_params(mx.init.Xavier(**XAVIER))
    return module


def pixels(batch: int = 2, size: int = 112) -> mx.io.DataBatch:
    images = np.random.RandomState(0).randint(0, 256, (batch, 3, size, size))
    return mx.io.DataBatch([mx.nd.array(images, dtype="float32")], None)


def operators(symbol: mx.sym.Symbol) -> list[str]:
    return [node["op"] for node in json.loads(symbol.tojson())["nodes"]]


@pytest.mark.parametrize(
    "network, name, shape",
    [
        ("r50", "conv0_weight", (64, 3, 3, 3)),
        ("r50", "stage1_unit1_conv1sc_weight", (64, 64, 1, 1)),
        ("r50", "stage3_unit14_conv2_weight", (256, 256, 3, 3)),
        ("r50", "pre_fc1_weight", (512, 512 * 7 * 7)),
        ("mbf", "dconv_23_conv_dw_conv2d_weight", (128, 1, 3, 3)),
        ("mbf", "res_4_block5_conv_proj_batchnorm_gamma", (128,)),
        ("mbf", "conv_6dw7_7_conv2d_weight", (512, 1, 7, 7)),
        ("rx50", "stage1_unit1_conv2_weight", (128, 4, 3, 3)),
        ("rx101", "stage3_unit23_conv3_weight", (1024, 512, 1, 1)),
    ],
)
def test_names_and_shapes_are_those_of_the_published_files(network, name, shape):
    parameters, statistics = shapes_of(get_symbol(network))
    assert {**parameters, **statistics}[name] == shape


def test_same_arguments_give_the_same_symbol():
    """Symbols built in between must not change the names, because checkpoints and ranks match parameters by name."""
    first = get_symbol("small", embedding_size=64).tojson()
    get_symbol("mbf")
    assert get_symbol("small", embedding_size=64).tojson() == first


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_settings_reach_every_block(network):
    symbol = get_symbol(network, net_se=True, net_act="tanh", bn_mom=0.75)
    nodes = json.loads(symbol.tojson())["nodes"]
    momenta = {node["attrs"]["momentum"] for node in nodes if node["op"] == "BatchNorm"}
    kinds = {node["attrs"]["act_type"] for node in nodes if node["op"] == "Activation"}
    assert momenta == {"0.75"}
    assert kinds == {"tanh", "sigmoid"}
    assert "LeakyReLU" not in operators(symbol)
    assert any(node["name"].endswith("_se_sigmoid") for node in nodes)


def test_initial_values():
    """With Xavier as the global initializer, slopes are still 0.25, scales 1 and offsets 0."""
    arguments, statistics = bound_module(get_symbol("mbf", embedding_size=16)).get_params()
    slopes = [name for name in arguments if name.endswith("_relu_gamma")]
    assert len(slopes) == 2 + 2 * 15 + 1
    for name, value in arguments.items():
        if not name.endswith("_weight"):
            expected = 0.25 if name in slopes else float(name.endswith("_gamma"))
            assert (value.asnumpy() == expected).all(), name
    assert all((value.asnumpy() == float(name.endswith("_var"))).all() for name, value in statistics.items())


@pytest.mark.parametrize("network", ["r18", "rx50", "mbf", "small"])
def test_forward_and_backward_reach_every_weight(network):
    mx.random.seed(3)
    # Images of 32 x 32 make it fast; they are too small for the head of mbf, so all networks use "FC".
    module = bound_module(get_symbol(network, embedding_size=16, net_output="FC"), batch=4, size=32)
    module.forward(pixels(4, size=32), is_train=True)
    features = module.get_outputs()[0]
    assert features.shape == (4, 16)
    module.backward([mx.nd.random.normal(shape=(4, 16))])
    for name, array in gradients(module).items():
        gradient = array.asnumpy()
        assert np.isfinite(gradient).all(), name
        assert name == "fc1_gamma" or np.abs(gradient).max() > 0, name
    module.init_optimizer(kvstore=None, optimizer_params={"learning_rate": 0.1, "wd": 0.5})
    module.update()
    updated = parameters(module)
    assert (updated["fc1_gamma"].asnumpy() == 1).all()  # no weight decay either
    assert updated["fc1_beta"].asnumpy().any() == (network != "small")  # the demo's embeddings stay centered


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"network": "r51"}, "did you mean 'r50'"),
        ({"network": "r18", "net_act": "prelou"}, "did you mean 'prelu'"),
        ({"network": "r18", "net_output": "GAPP"}, "did you mean 'GAP'"),
        ({"network": "r18", "embedding_size": 0}, "embedding_size is 0"),
        ({"network": "r18", "bn_mom": 1.0}, "bn_mom is 1.0"),
    ],
)
def test_invalid_settings_raise_with_the_nearest_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        get_symbol(**arguments)


@pytest.mark.parametrize("network", sorted(NETWORKS))
@pytest.mark.parametrize("net_output", sorted(HEADS))
def test_all_parameters_except_head_and_batch_norms_are_float16(network, net_output):
    options = {"embedding_size": 32, "net_output": net_output, "net_se": True, "net_act": "prelu"}
    symbol, full = (get_symbol(network, **options, fp16=fp16) for fp16 in (True, False))
    assert shapes_of(symbol) == shapes_of(full) and set(dtypes(full).values()) == {"float32"}
    parameters = dtypes(symbol)
    nodes = json.loads(symbol.tojson())["nodes"]
    batch_norms = {nodes[i[0]]["name"] for node in nodes if node["op"] == "BatchNorm" for i in node["inputs"][1:]}
    float32 = batch_norms | {name for name in HEAD if name in parameters}
    assert symbol.infer_type(data="float32")[1] == [np.float32]
    assert {name for name, dtype in parameters.items() if dtype == "float32"} == float32
    assert {name for name, dtype in parameters.items() if dtype == "float16"} == set(parameters) - float32
    assert {"conv0_weight", "conv_1_conv2d_weight"} & (set(parameters) - float32)


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
