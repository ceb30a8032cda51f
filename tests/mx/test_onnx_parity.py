"""The ONNX file of every backbone and operator gives the same embeddings as MXNet."""

import mxnet as mx
import onnx
import pytest
from symbol_arrays import embed, random_parameters

from partial_fc.export.model import FaceModel
from partial_fc.export.parity import random_faces
from partial_fc.utils.distances import squared_distances
from partial_fc_mxnet.onnx_export import OnnxExport
from partial_fc_mxnet.symbol import NETWORKS, get_symbol

SMALLEST = 16  # pixels; every backbone but those with a depth-wise head takes any multiple of it


def export(symbol, side):
    """Returns the ONNX file, which OnnxExport compares with MXNet."""
    return OnnxExport(symbol, side, mx.cpu())(*random_parameters(symbol, side), num_update=1)


LARGE = [pytest.mark.slow, pytest.mark.thorough]
# Backbones that differ from another one in the number of their units alone.
ALIKE = {"r50", "r124", "r200", "rx101"}


@pytest.mark.parametrize(
    "network",
    [pytest.param(name, marks=LARGE if name == "r100" else ()) for name in NETWORKS if name not in ALIKE],
)
def test_every_backbone(network):
    side = 112 if network in ("mbf", "small") else SMALLEST
    content = export(get_symbol(network, 64), side)
    model = FaceModel(content, network)
    assert model.input == ("data", None, (side, side), True)
    assert model.embed(random_faces((side, side), 3)).shape == (3, 64)


@pytest.mark.parametrize(
    "style",
    [{"net_se": True}, {"net_output": "E"}, {"net_output": "GAP"}]
    + [{"net_act": kind} for kind in ("softrelu", "softsign", "tanh", "sigmoid", "relu")],
    ids=str,
)
def test_every_style(style):
    export(get_symbol("r18", 32, **style), SMALLEST)
    if style == {"net_se": True}:
        export(get_symbol("mbf", 32, **style), 112)


def other_operators():
    """Returns a network with operators of the original's and of users' backbones."""
    data = mx.sym.identity(mx.sym.Variable("data"), name="id")
    body = mx.sym.Cast((data - 127.5) / 128, dtype="float32")
    body = mx.sym.Convolution(body, kernel=(3, 3), num_filter=6, dilate=(2, 2), pad=(1, 0), stride=(2, 1), name="conv")
    body = mx.sym.BatchNorm(body, name="bn")  # fix_gamma and eps are MXNet's defaults
    body = mx.sym.LeakyReLU(body, act_type="leaky", slope=0.1, name="leaky")
    pooled = mx.sym.Pooling(body, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="avg", name="average")
    body = pooled + mx.sym.Pooling(body, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="max", name="largest")
    body = mx.sym.LeakyReLU(body, act_type="elu", slope=0.7, name="elu") * body
    gate = mx.sym.Pooling(body, global_pool=True, kernel=(1, 1), pool_type="max", name="gate")
    body = mx.sym.Flatten(mx.sym.broadcast_add(body, gate))
    body = mx.sym.FullyConnected(mx.sym.Dropout(body), num_hidden=8, no_bias=True, name="hidden")
    body = mx.sym.LeakyReLU(body + 0.25, act_type="prelu", name="relu_prelu")  # slopes of (N, C)
    return mx.sym.FullyConnected(body, num_hidden=5, name="fc1")


def test_other_operators():
    export(other_operators(), SMALLEST)


def test_parameters_as_operands_shared_weights_and_flat_output():
    scale, shared = mx.sym.Variable("scale", shape=(1, 4, 1, 1)), mx.sym.Variable("shared_weight")
    body = mx.sym.Convolution(mx.sym.Variable("data"), num_filter=4, kernel=(3, 3), no_bias=True, name="conv")
    body = mx.sym.broadcast_mul(scale, mx.sym.BatchNorm(body, name="bn"))
    for name in ("first", "second"):
        body = mx.sym.Convolution(body, weight=shared, num_filter=4, kernel=(3, 3), pad=(1, 1), no_bias=True, name=name)
    body = mx.sym.Flatten(mx.sym.Pooling(body, global_pool=True, kernel=(1, 1), pool_type="avg"))
    content = export(mx.sym.BatchNorm(body, name="fc1"), SMALLEST)
    assert FaceModel(content, "own").embed(random_faces((SMALLEST, SMALLEST), 2)).shape == (2, 4)


def test_a_node_that_does_not_depend_on_images_is_reported():
    still = mx.sym.Variable("still", shape=(1, 8)) * 2.0
    with pytest.raises(ValueError, match="depends on the parameter still but not on images"):
        export(mx.sym.broadcast_add(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8), still), SMALLEST)


@pytest.mark.parametrize("network", ["r18", pytest.param("r100", marks=LARGE)])
def test_an_untrained_network_is_exported_without_comparison(network):
    """A deep one with net_se is chaotic: MXNet's embeddings change by 0.5 when pixels change by a ten-thousandth."""
    symbol = get_symbol(network, 16, net_se=True)
    module = mx.mod.Module(symbol, label_names=None)
    module.bind([("data", (1, 3, SMALLEST, SMALLEST))], for_training=False)
    module.init_params(mx.init.Xavier(rnd_type="gaussian", factor_type="out", magnitude=2))
    OnnxExport(symbol, SMALLEST, mx.cpu()).validate_export(*module.get_params())


def test_onnxruntime_1_6_can_read_it():
    """Opset 11 and IR 6 of 2019, and only operators of this opset; onnxruntime 1.6.0 has run four such files."""
    model = onnx.load_model_from_string(export(get_symbol("r18", 16, net_se=True), 112))
    assert ([(each.domain, each.version) for each in model.opset_import], model.ir_version) == ([("", 11)], 6)
    assert all(onnx.defs.has(node.op_type, max_inclusive_version=11) for node in model.graph.node)
    assert {tensor.data_type for tensor in model.graph.initializer} == {onnx.TensorProto.FLOAT}


def test_an_unsupported_operator_is_reported():
    with pytest.raises(ValueError, match="odd: operator .*L2Normalization.*cannot be exported"):
        odd = mx.sym.L2Normalization(mx.sym.Variable("data"), name="odd")
        export(mx.sym.FullyConnected(odd, num_hidden=4, name="fc1"), SMALLEST)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_mxnet_checkpoints_are_read(dtype, tmp_path):
    """Written by mx.model.save_checkpoint, in float32 and float16."""
    symbol = get_symbol("small", 16)
    params = [{name: array.astype(dtype) for name, array in some.items()} for some in random_parameters(symbol)]
    mx.model.save_checkpoint(str(tmp_path / "model"), 3, symbol, *params)
    mx.model.save_checkpoint(str(tmp_path / "model"), 7, symbol, *params)
    faces = random_faces((112, 112), 3)
    single = [{name: array.astype("float32") for name, array in some.items()} for some in params]
    expected = embed(symbol, *single, faces)
    for path in (tmp_path, tmp_path / "model-symbol.json", tmp_path / "model-0003.params"):
        assert squared_distances(FaceModel.open(path).embed(faces), expected).max() / 2 < 1e-4
