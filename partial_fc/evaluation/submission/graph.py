"""Checks the inputs, outputs, nodes and weights of a submitted model.

Shapes: N faces, H, W image size.
"""

from __future__ import annotations

import onnx
import onnxruntime
from onnx import TensorProto

from partial_fc.export.normalization import FIRST_NODES, MEAN, SCALE, takes_raw_pixels

from .files import PIXELS, PixelSettings
from .rules import Rule

MIN_NODES = 8
# Types of 4 bytes or more. Narrower types (float16, int8) would reduce the size of a large network.
WIDE = "FLOAT DOUBLE INT32 INT64 UINT32 UINT64 COMPLEX64 COMPLEX128 STRING".split()


def check_signature(session: onnxruntime.InferenceSession, image_size: tuple[int, int]) -> list[Rule]:
    """Checks input and output of a model that must take images of ``image_size`` (H, W)."""
    inputs, outputs = session.get_inputs(), session.get_outputs()
    shape = inputs[0].shape if inputs else []
    rules = [
        Rule(
            "input",
            len(inputs) == 1 and len(shape) == 4 and inputs[0].type == "tensor(float)",
            f"{', '.join(f'{each.name} {each.type} {each.shape}' for each in inputs) or 'none'}; "
            "expected one of float32 with 4 dimensions",
        )
    ]
    if len(shape) == 4:
        # onnxruntime represents a dynamic dimension by its name or None.
        rules.append(Rule("batch", not isinstance(shape[0], int), f"{shape[0] or 'unnamed'}; expected dynamic"))
        expected = [3, *image_size]
        rules.append(Rule("image", shape[1:] == expected, f"{_sides(shape[1:])}; expected {_sides(expected)} (RGB)"))
    names = ", ".join(f"{output.name} {output.shape}" for output in outputs)
    rules.append(Rule("output", len(outputs) == 1, f"{names or 'none'}; expected one"))
    return rules


def check_graph(graph: onnx.GraphProto, pixels: PixelSettings) -> list[Rule]:
    """Checks nodes and weights, and describes the normalization of pixels."""
    return [
        Rule("nodes", len(graph.node) >= MIN_NODES, f"{len(graph.node)}, at least {MIN_NODES}"),
        _check_weights(graph),
        Rule("normalization", True, _normalization(graph, pixels)),
    ]


def pixel_norm(graph: onnx.GraphProto, pixels: PixelSettings) -> tuple[float, float]:
    """Returns (mean, deviation) of the normalization that the challenge applies before the model; (0, 1) for none."""
    if pixels.mean is not None and pixels.deviation is not None:
        return pixels.mean, pixels.deviation
    return (0.0, 1.0) if takes_raw_pixels(node.name for node in graph.node) else (MEAN, 1 / SCALE)


def _normalization(graph: onnx.GraphProto, pixels: PixelSettings) -> str:
    mean, deviation = pixel_norm(graph, pixels)
    before = f"(x - {mean:g}) / {deviation:g} before the model"
    if pixels.mean is not None:
        return f"{before}, from {PIXELS}"
    if takes_raw_pixels(node.name for node in graph.node):
        return f"by the model: its first {FIRST_NODES} nodes include a Sub and a Mul, by name"
    return f"{before}: its first {FIRST_NODES} nodes lack a Sub or a Mul, by name"


def _check_weights(graph: onnx.GraphProto) -> Rule:
    """Checks that no weight has a narrow type or is stored in another file, whose size would not count."""
    for tensor in graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            return Rule("weights", False, f"{tensor.name} is stored in another file; expected a single .onnx file")
    kinds = {tensor.name: TensorProto.DataType.Name(tensor.data_type) for tensor in graph.initializer}
    narrow = [f"{name} of {kind.lower()}" for name, kind in kinds.items() if kind not in WIDE]
    if narrow:
        figure = f"{len(narrow)} tensors of less than 4 bytes per element, such as {narrow[0]}"
        return Rule("weights", False, figure)
    return Rule("weights", True, f"{len(graph.initializer)} tensors of 4 bytes or more per element")


def _sides(shape: list) -> str:
    return "x".join(map(str, shape))
