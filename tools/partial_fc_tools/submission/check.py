"""Checks a submission to the masked-face challenge by all rules, even if some of them fail.

The challenge's own check differs in three ways: it makes a fixed batch size dynamic, it reports the sixth fastest of 50
runs without warm-up as the time, and it does not compare a batch of faces with the same faces one by one.
"""

import math
import os
from collections.abc import Iterator, Sequence

import onnx
import onnxruntime
from onnx import TensorProto

from partial_fc.export.model import FLOATS, LARGEST_INPUT, interruptible, open_session
from partial_fc.export.model_file import onnx_names
from partial_fc.export.normalization import FIRST_NODES, MEAN, SCALE, takes_raw_pixels
from partial_fc.utils.text import some

from .rules import MEGABYTE, PIXELS, Limits, PixelSettings, Rule, check_pixel_files
from .runs import FACES, check_runs, sample_faces

FILE_RULES = ("folder", "file", "size")
PIXEL_RULES = ("crop.txt", "pixel_norm.txt")
MODEL_RULES = ("loads", "input", "batch", "image", "output", "nodes", "weights", "normalization")
RUN_RULES = ("feature", "finite", "together", "time")
MIN_NODES = 8
# Types of 4 bytes or more: the challenge forbids narrower types, with which a larger network would meet the size limit.
WIDE = "FLOAT DOUBLE INT32 INT64 UINT32 UINT64 COMPLEX64 COMPLEX128 STRING".split()
NOT_CHECKED = "not checked: a rule above must pass first"


def check_submission(folder: str, limits: Limits) -> list[Rule]:
    """Checks the model in a folder against the limits of a track.

    Returns all rules in order; a rule that could not be checked fails. Raises OSError if a file cannot be read.
    """
    checked = {rule.name: rule for rule in _check(folder, limits)}
    names = FILE_RULES + (PIXEL_RULES if limits.custom_pixels else ()) + MODEL_RULES + RUN_RULES
    return [checked.get(name, Rule(name, False, NOT_CHECKED)) for name in names]


def _check(folder: str, limits: Limits) -> Iterator[Rule]:
    """Yields the rules that can be checked."""
    if not os.path.exists(folder):
        raise FileNotFoundError(f"{folder} does not exist: give the folder of a submission")
    if not os.path.isdir(folder):
        yield Rule("folder", False, f"{folder} is a file: a submission is a folder with an .onnx file")
        return
    yield Rule("folder", True, folder)
    names = onnx_names(folder)
    if not names:
        yield Rule("file", False, f"{folder} has no .onnx file")
        return
    path = os.path.join(folder, names[-1])
    yield Rule("file", True, names[-1] + (f", the last of {len(names)} by name" if len(names) > 1 else ""))
    size = os.path.getsize(path) / MEGABYTE
    yield Rule("size", size <= limits.megabytes, f"{size:.1f} MB, at most {limits.megabytes:g}")
    pixels = PixelSettings()
    if limits.custom_pixels:
        pixel_rules, pixels = check_pixel_files(folder)
        yield from pixel_rules
    yield from _check_model(path, pixels, limits)


def _check_model(path: str, pixels: PixelSettings, limits: Limits) -> Iterator[Rule]:
    try:  # FaceModel would refuse some models before the rules do
        session, model = open_session(path)
    except ValueError as error:
        yield Rule("loads", False, str(error))
        return
    yield Rule("loads", True, f"onnxruntime {onnxruntime.__version__}")
    graph = model.graph
    signature = list(_check_signature(session, pixels.image_size))
    yield from signature
    yield Rule("nodes", len(graph.node) >= MIN_NODES, f"{len(graph.node)}, at least {MIN_NODES}")
    yield _check_weights(graph)
    mean, deviation = pixels.norm or (MEAN, 1 / SCALE)
    normalization = f"(x - {mean:g}) / {deviation:g} before the model"
    if pixels.norm:
        normalization += f", from {PIXELS}"
    elif takes_raw_pixels(node.name for node in graph.node):
        mean, deviation = 0.0, 1.0
        normalization = f"by the model: its first {FIRST_NODES} nodes include a Sub and a Mul, by name"
    else:
        normalization += f": its first {FIRST_NODES} nodes lack a Sub or a Mul, by name"
    yield Rule("normalization", True, normalization)
    if not signature[0].passed or any(output.type not in FLOATS for output in session.get_outputs()):
        return
    height, width = session.get_inputs()[0].shape[2:]
    dynamic_size = not (isinstance(height, int) and isinstance(width, int))
    size = pixels.image_size if dynamic_size else (height, width)
    if min(size) < 1 or 3 * FACES * math.prod(size) > LARGEST_INPUT:
        yield Rule("feature", False, f"{_sides(size)} is too large or too small for a test run of the model")
        return
    faces = sample_faces(size, mean, deviation)
    yield from interruptible(lambda options: list(check_runs(session, faces, limits, options)))


def _check_signature(session: onnxruntime.InferenceSession, image_size: tuple[int, int]) -> Iterator[Rule]:
    inputs, outputs = session.get_inputs(), session.get_outputs()
    shape = inputs[0].shape if inputs else []
    names = some([f"{node.name} {node.type} {node.shape}" for node in inputs]) or "none"
    passed = len(inputs) == 1 and len(shape) == 4 and inputs[0].type == "tensor(float)"
    yield Rule("input", passed, f"{names}; expected one float32 input with 4 dimensions")
    if len(shape) == 4:
        # onnxruntime represents a dynamic dimension by its name or None.
        yield Rule("batch", not isinstance(shape[0], int), f"{shape[0] or 'unnamed'}; expected dynamic")
        expected = [3, *image_size]
        yield Rule("image", shape[1:] == expected, f"{_sides(shape[1:])}; expected {_sides(expected)} (RGB)")
    names = some([f"{output.name} {output.type} {output.shape}" for output in outputs]) or "none"
    yield Rule(
        "output", len(outputs) == 1 and outputs[0].type in FLOATS, f"{names}; expected one floating-point output"
    )


def _check_weights(graph: onnx.GraphProto) -> Rule:
    """Checks that no weight has a narrow type or is stored in another file, which the size would not include."""
    for tensor in graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            return Rule("weights", False, f"{tensor.name} is stored in another file; expected a single .onnx file")
    kinds = {tensor.name: TensorProto.DataType.Name(tensor.data_type) for tensor in graph.initializer}
    narrow = [f"{name} of {kind.lower()}" for name, kind in kinds.items() if kind not in WIDE]
    if narrow:
        return Rule("weights", False, f"{len(narrow)} tensors of less than 4 bytes per element, such as {narrow[0]}")
    return Rule("weights", True, f"{len(graph.initializer)} tensors of 4 bytes or more per element")


def _sides(shape: Sequence) -> str:
    return "x".join(map(str, shape))
