"""The rules of the masked-face challenge on what an ONNX file says of its model.

Shapes: N faces, H, W image size.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnxruntime
from onnx import TensorProto

from partial_fc.export.normalization import FIRST_NODES, MEAN, SCALE, takes_raw_pixels

from .files import PIXELS, OwnPixels
from .rules import Rule

MIN_NODES = 8
# Types of 4 bytes or more; the rest (halves, 8-bit integers) would make a large network look small.
WIDE = {
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.UINT32,
    TensorProto.UINT64,
    TensorProto.COMPLEX64,
    TensorProto.COMPLEX128,
    TensorProto.STRING,
}


def check_signature(session: onnxruntime.InferenceSession, image_size: tuple[int, int]) -> list[Rule]:
    """The rules on input and output, of a model that must take images of `image_size` (H, W)."""
    inputs, outputs = session.get_inputs(), session.get_outputs()
    shape = inputs[0].shape if inputs else []
    rules = [
        Rule(
            "input",
            len(inputs) == 1 and len(shape) == 4 and inputs[0].type == "tensor(float)",
            f"{', '.join(f'{each.name} {each.type} {each.shape}' for each in inputs) or 'none'}; "
            "one of float32 and 4 dimensions",
        )
    ]
    if len(shape) == 4:
        # onnxruntime gives a dimension that is open as its name, or None.
        rules.append(Rule("batch", not isinstance(shape[0], int), f"{shape[0] or 'unnamed'}; any number of faces"))
        wanted = [3, *image_size]
        rules.append(Rule("image", shape[1:] == wanted, f"{_sides(shape[1:])}; {_sides(wanted)} (RGB)"))
    names = ", ".join(f"{output.name} {output.shape}" for output in outputs)
    rules.append(Rule("output", len(outputs) == 1, f"{names or 'none'}; one"))
    return rules


def check_graph(graph: onnx.GraphProto, own: OwnPixels) -> list[Rule]:
    """The rules on nodes and weights, and how pixels are normalised."""
    return [
        Rule("nodes", len(graph.node) >= MIN_NODES, f"{len(graph.node)}, at least {MIN_NODES}"),
        _check_weights(graph),
        Rule("normalisation", True, _normalisation(graph, own)),
    ]


def pixel_norm(graph: onnx.GraphProto, own: OwnPixels) -> tuple[float, float]:
    """(mean, deviation) that the challenge normalises pixels with before the model sees them: (0, 1) for not at all."""
    if own.mean is not None and own.deviation is not None:
        return own.mean, own.deviation
    return (0.0, 1.0) if takes_raw_pixels(node.name for node in graph.node) else (MEAN, 1 / SCALE)


def _normalisation(graph: onnx.GraphProto, own: OwnPixels) -> str:
    mean, deviation = pixel_norm(graph, own)
    if own.mean is not None:
        return f"(x - {mean:g}) / {deviation:g} before the model, as {PIXELS} says"
    if takes_raw_pixels(node.name for node in graph.node):
        return f"by the model: a Sub and a Mul, by name, among its first {FIRST_NODES} nodes"
    return f"(x - {mean:g}) / {deviation:g} before the model: no Sub and Mul, by name, among its first {FIRST_NODES}"


def _check_weights(graph: onnx.GraphProto) -> Rule:
    """No narrow types, wherever weights can lie, and all in the file whose size is limited.

    The challenge's own check looks at initializers only, and would read weights from a second file.
    """
    constants = list(_constants(graph))
    initializers = [tensor for each in _graphs(graph) for tensor in each.initializer]
    for tensor in [*initializers, *constants]:
        if tensor.data_location == TensorProto.EXTERNAL:
            return Rule("weights", False, f"{tensor.name} lies in another file: all must be in the one .onnx file")
    narrow = [tensor for tensor in initializers if tensor.data_type not in WIDE]
    narrow += [tensor for tensor in constants if tensor.data_type not in WIDE | {TensorProto.BOOL}]
    if narrow:
        kind = TensorProto.DataType.Name(narrow[0].data_type).lower()
        return Rule("weights", False, f"{len(narrow)} of less than 4 bytes, as {narrow[0].name} of {kind}")
    return Rule("weights", True, f"{len(initializers)} tensors of 4 bytes or more")


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and those inside its nodes, such as the branches of an If."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [attribute.g, *attribute.graphs]:
                if inner.node:
                    yield from _graphs(inner)


def _constants(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    """Tensors that nodes hold themselves, Constant nodes above all."""
    for each in _graphs(graph):
        for node in each.node:
            for attribute in node.attribute:
                yield from ([attribute.t] if attribute.type == onnx.AttributeProto.TENSOR else attribute.tensors)


def _sides(shape: list) -> str:
    return "x".join(map(str, shape))
