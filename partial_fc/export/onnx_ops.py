"""Converts the MXNet operators of the backbones to ONNX, opset 11, in inference mode.

Shapes: N images, C channels; a Tensor is (N, C, H, W) or (N, C).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .mxnet_symbol import Node


class Tensor(NamedTuple):
    """The output of a node."""

    name: str
    dimensions: int
    channels: int  # C; 0 if unknown


class Graph:
    """An ONNX graph under construction.

    Args:
        parameters: arrays by name. The graph stores those that it uses as float32 initializers.
    """

    def __init__(self, parameters: dict[str, np.ndarray]):
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._parameters = parameters
        self._stored: set[str] = set()

    def add(self, op: str, node: Node, inputs: Sequence[str], suffix: str = "", **attributes: Any) -> str:
        """Adds an ONNX node with the name of the MXNet node plus ``suffix``; returns the name of its output."""
        name = node.name + suffix
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def mark_raw_pixels(self, data: str) -> None:
        """Inserts ``data - 0`` and ``* 1`` at the start, which mark a model that takes raw pixels."""
        for node in self.nodes:
            node.input[:] = ["Mul_raw" if name == data else name for name in node.input]
        steps = []
        for op, source, number in (("Sub", data, 0.0), ("Mul", "Sub_raw", 1.0)):
            value = self.store(f"{op}_raw_scalar", np.array(number, np.float32))
            steps.append(helper.make_node(op, [source, value], [f"{op}_raw"], name=f"{op}_raw"))
        self.nodes[:0] = steps

    def weight(self, name: str, shape: tuple[int, ...] | None = None) -> str:
        """Stores a parameter as float32, reshaped if ``shape`` is given; returns its name."""
        array = self.parameter(name)
        return self.store(name, array if shape is None else array.reshape(shape))

    def parameter(self, name: str) -> np.ndarray:
        """Returns a parameter as float32. Raises ValueError if it is missing."""
        if name not in self._parameters:
            raise ValueError(f"the parameters lack {name}: they do not belong to this network")
        return np.ascontiguousarray(self._parameters[name], np.float32)

    def store(self, name: str, array: np.ndarray) -> str:
        """Adds an initializer unless it exists; returns its name."""
        if name not in self._stored:
            self.initializers.append(numpy_helper.from_array(array, name))
            self._stored.add(name)
        return name


Inputs = Sequence[Any]  # Tensors and names of parameters


def convert(graph: Graph, node: Node, inputs: Inputs) -> Tensor:
    """Adds the ONNX nodes for an MXNet node.

    Raises:
        ValueError: the operator or one of its attributes is not supported; the message names the node.
    """
    if node.op not in OPERATORS:
        raise ValueError(
            f"{node.name}: operator {node.op} cannot be exported; supported operators: {', '.join(OPERATORS)}"
        )
    # One operand of an addition may be a parameter; the data of every other operator must come from the images.
    if not any(isinstance(value, Tensor) for value in inputs[: 2 if node.op in ARITHMETIC else 1]):
        raise ValueError(f"{node.name} depends on the parameter {inputs[0]} but not on images: it cannot be exported")
    return OPERATORS[node.op](graph, node, inputs)


def _arithmetic(graph: Graph, node: Node, inputs: Inputs) -> Tensor:
    """Adds an operation on two arrays, one of which may be a parameter, or on an array and a number."""
    operands = [value.name if isinstance(value, Tensor) else graph.weight(value) for value in inputs]
    if len(operands) == 1:
        operands.append(graph.store(f"{node.name}_scalar", np.array(node.get("scalar", 0.0), np.float32)))
    tensor = next(value for value in inputs if isinstance(value, Tensor))
    return tensor._replace(name=graph.add(ARITHMETIC[node.op], node, operands))


def _identity(graph: Graph, node: Node, inputs: Inputs) -> Tensor:
    """Skips a node without effect: dropout at inference, or a cast, as the whole graph is in float32."""
    return inputs[0]


def _convolution(graph: Graph, node: Node, inputs: Inputs) -> Tensor:
    kernel, pads = node.get("kernel", ()), node.get("pad", (0, 0))
    if len(kernel) != 2 or node.get("layout", "NCHW") not in ("NCHW", "None", None):
        raise ValueError(f"{node.name}: only 2-D convolutions of (N, C, H, W) can be exported, got kernel {kernel}")
    output = graph.add(
        "Conv",
        node,
        [inputs[0].name, *map(graph.weight, inputs[1:])],
        kernel_shape=kernel,
        strides=node.get("stride", (1, 1)),
        dilations=node.get("dilate", (1, 1)),
        pads=[*pads, *pads],
        group=node.get("num_group", 1),
    )
    return Tensor(output, 4, node.get("num_filter", 0))


def _batch_norm(graph: Graph, node: Node, inputs: Inputs) -> Tensor:
    data, *names = inputs
    if node.get("axis", 1) != 1:
        raise ValueError(f"{node.name} normalizes axis {node.get('axis', 1)}; only axis 1 (channels) can be exported")
    gamma, *rest = (graph.parameter(name) for name in names)
    if node.get("fix_gamma", True):  # MXNet then ignores the stored gamma
        gamma = np.ones_like(gamma)
    stored = [graph.store(name, array) for name, array in zip(names, (gamma, *rest))]
    epsilon = float(node.get("eps", 1e-3))
    return data._replace(name=graph.add("BatchNormalization", node, [data.name, *stored], epsilon=epsilon))


def _leaky_relu(graph: Graph, node: Node, inputs: Inputs) -> Tensor:
    data, kind = inputs[0], node.get("act_type", "leaky")
    if kind == "prelu":
        # (C, 1, 1) for images: ONNX broadcasts from the last axis, so (C,) would mean one slope per column.
        shape = (-1,) + (1,) * (data.dimensions - 2)
        return data._replace(name=graph.add("PRelu", node, [data.name, graph.weight(inputs[1], shape)]))
    onnx_name = {"leaky": "LeakyRelu", "elu": "Elu"}.get(kind)
    if onnx_name is None:
        raise ValueError(f"{node.name}: LeakyReLU with act_type={kind} cannot be exported")
    return data._replace(name=graph.add(onnx_name, node, [data.name], alpha=float(node.get("slope", 0.25))))


POOLS = {"avg": "AveragePool", "max": "MaxPool"}
ACTIVATIONS = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "softrelu": "Softplus", "softsign": "Softsign"}


def _activation(graph: Graph, node: Node, inputs: Inputs) -> Tensor:
    kind = node.get("act_type", "")
    if kind not in ACTIVATIONS:
        raise ValueError(f"{node.name}: activation {kind} cannot be exported")
    return inputs[0]._replace(name=graph.add(ACTIVATIONS[kind], node, [inputs[0].name]))


def _pooling(graph: Graph, node: Node, inputs: Inputs) -> Tensor:
    data, kind = inputs[0], node.get("pool_type", "max")
    convention = node.get("pooling_convention", "valid")
    if kind not in POOLS or convention != "valid":
        raise ValueError(f"{node.name}: pooling {kind} with pooling_convention={convention} cannot be exported")
    if node.get("global_pool", False):
        return data._replace(name=graph.add(f"Global{POOLS[kind]}", node, [data.name]))
    pads = node.get("pad", (0, 0))
    attributes = {"kernel_shape": node.get("kernel", ()), "strides": node.get("stride", (1, 1)), "pads": [*pads, *pads]}
    if kind == "avg":
        attributes["count_include_pad"] = int(node.get("count_include_pad", True) is not False)
    return data._replace(name=graph.add(POOLS[kind], node, [data.name], **attributes))


def _flatten(graph: Graph, node: Node, inputs: Inputs) -> Tensor:
    # The number of features of a flattened image depends on H and W, which are unknown here.
    channels = inputs[0].channels if inputs[0].dimensions == 2 else 0
    return Tensor(graph.add("Flatten", node, [inputs[0].name], axis=1), 2, channels)


def _fully_connected(graph: Graph, node: Node, inputs: Inputs) -> Tensor:
    data, *names = inputs
    flat = data.name
    if data.dimensions != 2:
        if not node.get("flatten", True):
            raise ValueError(f"{node.name}: a fully connected layer with flatten=False cannot be exported")
        flat = graph.add("Flatten", node, [flat], "_flatten", axis=1)
    return Tensor(graph.add("Gemm", node, [flat, *map(graph.weight, names)], transB=1), 2, node.get("num_hidden", 0))


OPERATORS: dict[str, Callable[[Graph, Node, Inputs], Tensor]] = {
    "Convolution": _convolution,
    "BatchNorm": _batch_norm,
    "LeakyReLU": _leaky_relu,
    "Activation": _activation,
    "Pooling": _pooling,
    "FullyConnected": _fully_connected,
    "Flatten": _flatten,
    "Dropout": _identity,
    "Cast": _identity,
    "identity": _identity,
    "_copy": _identity,
}
ARITHMETIC = {
    "_minus_scalar": "Sub",
    "_plus_scalar": "Add",
    "_mul_scalar": "Mul",
    "_div_scalar": "Div",
    "elemwise_add": "Add",
    "broadcast_add": "Add",
    "_Plus": "Add",
    "elemwise_mul": "Mul",
    "broadcast_mul": "Mul",
}
OPERATORS.update(dict.fromkeys(ARITHMETIC, _arithmetic))
