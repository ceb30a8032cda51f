"""Detects the range of the pixels that a model takes.

`takes_raw_pixels` is the rule of the masked-face challenge (ICCV 2021, InsightFace): a model normalizes pixels itself
if its first nodes include, by name, a subtraction and a multiplication or division. Names differ between exporters, so
everywhere else the model's metadata decide, or, without metadata, the values that its first operators compute.
"""

import math
from collections.abc import Callable, Iterable

import onnx
from onnx import helper

FIRST_NODES = 8
SUBTRACTS, SCALES = ("Sub", "_minus"), ("Mul", "_mul", "Div")
MEAN, SCALE = 127.5, 1 / 127.5
RAW, NORMALIZED = "0..255", "-1..1"
RANGES = {RAW: (0.0, 1.0), "0..1": (0.0, 1 / 255), NORMALIZED: (MEAN, SCALE)}  # mean, scale: (x - mean) * scale
PIXELS = "pixel_range"  # key of the metadata of an ONNX file; its value is a key of RANGES
PRODUCTS = ("Conv", "MatMul", "Gemm")  # parts of the names of operators that end the normalization


def takes_raw_pixels(names: Iterable[str]) -> bool:
    """Returns whether a model takes pixels 0..255, by the names of its nodes in order."""
    first = list(names)[:FIRST_NODES]
    return any(name.startswith(SUBTRACTS) for name in first) and any(name.startswith(SCALES) for name in first)


def first_operators(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Returns the part of a model between its input and its first product, or None if this part is empty."""
    graph = model.graph
    data = next(each for each in graph.input if each.name not in {tensor.name for tensor in graph.initializer})
    computed, taken = {data.name}, [data.name]
    for node in graph.node:
        taken = [name for name in node.input if name in computed]
        if taken and any(product in node.op_type for product in PRODUCTS):
            break
        computed.update(node.output if taken else ())
    needed = {*taken[:1]}
    nodes: list[onnx.NodeProto] = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            nodes.insert(0, node)
            needed.update(filter(None, node.input))  # an omitted optional input is ""
    if not nodes:
        return None
    constants = [tensor for tensor in graph.initializer if tensor.name in needed]
    part = helper.make_graph(nodes, "first", [data], [helper.make_empty_tensor_value_info(taken[0])], constants)
    return helper.make_model(
        part, opset_imports=model.opset_import, ir_version=model.ir_version, functions=model.functions
    )


def expected_range(respond: Callable[[float], float], names: Iterable[str]) -> str | None:
    """Returns the key of RANGES whose pixels the model's first operators map closest to -1..1.

    Args:
        respond: maps the value of all pixels to the mean output of the first operators, or NaN if it is unknown.
        names: names of their nodes, which decide if the values are inconclusive.

    Returns:
        The key; None if the names are inconclusive, too.
    """
    ends = {name: [(x - mean) * scale for x in (0, 255)] for name, (mean, scale) in RANGES.items()}
    values = {name: [respond(end) for end in pair] for name, pair in ends.items()}

    def distance(low: float, high: float) -> float:
        """Returns the distance from -1..1: the ratio of widths in octaves, plus the shift in half widths."""
        width = max(abs(high - low), 1e-9)
        return abs(math.log2(width / 2)) + abs(high + low) / width if math.isfinite(width) else math.inf

    (first, pixels), (second, _), _ = sorted((distance(*pair), name) for name, pair in values.items())
    unchanged = all(math.dist(ends[name], values[name]) < 1e-2 for name in RANGES)
    if second - first >= 1 and not unchanged:
        return pixels
    if takes_raw_pixels(names):
        return RAW
    return NORMALIZED if unchanged else None
