"""Detects which pixels a model takes.

`takes_raw_pixels` is the rule of the masked-face challenge (ICCV 2021, InsightFace): a model normalizes pixels itself
if its first nodes include, by name, a subtraction and a multiplication or division. As exporters name nodes in many
ways, the metadata of a model decide for all other uses, or else what its first operators make of pixels.
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
PIXELS = "pixel_range"  # one of RANGES in the metadata of an ONNX file
PRODUCTS = ("Conv", "MatMul", "Gemm")  # and operators whose names contain these


def takes_raw_pixels(names: Iterable[str]) -> bool:
    """Returns whether a model whose nodes have these names, in order, takes pixels 0..255."""
    first = list(names)[:FIRST_NODES]
    return any(name.startswith(SUBTRACTS) for name in first) and any(name.startswith(SCALES) for name in first)


def first_operators(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Returns the part of a model between its input and its first product; None if there is none."""
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
            needed.update(filter(None, node.input))  # "": an input that is left out
    if not nodes:
        return None
    constants = [tensor for tensor in graph.initializer if tensor.name in needed]
    part = helper.make_graph(nodes, "first", [data], [helper.make_empty_tensor_value_info(taken[0])], constants)
    return helper.make_model(
        part, opset_imports=model.opset_import, ir_version=model.ir_version, functions=model.functions
    )


def expected_range(respond: Callable[[float], float], names: Iterable[str]) -> str | None:
    """Returns which of RANGES a model takes: the one that its first operators bring nearest to -1..1.

    Args:
        respond: Value of all pixels -> mean of the output of these operators; NaN if it is unknown.
        names: Of their nodes, which decide if the values do not.

    Returns:
        None if neither decides.
    """
    ends = {name: [(x - mean) * scale for x in (0, 255)] for name, (mean, scale) in RANGES.items()}
    values = {name: [respond(end) for end in pair] for name, pair in ends.items()}

    def distance(low: float, high: float) -> float:
        """Octaves between the widths, plus the shift in half widths."""
        width = max(abs(high - low), 1e-9)
        return abs(math.log2(width / 2)) + abs(high + low) / width if math.isfinite(width) else math.inf

    (first, pixels), (second, _), _ = sorted((distance(*pair), name) for name, pair in values.items())
    unchanged = all(math.dist(ends[name], values[name]) < 1e-2 for name in RANGES)
    if second - first >= 1 and not unchanged:
        return pixels
    if takes_raw_pixels(names):
        return RAW
    return NORMALIZED if unchanged else None
