"""Checks a submission to the masked-face challenge by all rules; a failed rule does not hide the others.

The check of the challenge differs: it makes a fixed batch size dynamic, reports the sixth fastest of 50 runs without
warm-up as the time, and does not compare a batch of faces with the same faces one by one.
"""

from __future__ import annotations

import onnx
import onnxruntime
from onnx import TensorProto

from partial_fc.export.normalization import FIRST_NODES, MEAN, SCALE, takes_raw_pixels
from partial_fc.inference.model import open_session

from .rules import PIXELS, Limits, PixelSettings, Rule, check_files, check_pixel_files
from .runs import check_runs, sample_faces

FILE_RULES = ("folder", "file", "size")
PIXEL_RULES = ("crop.txt", "pixel_norm.txt")
MODEL_RULES = ("loads", "input", "batch", "image", "output", "nodes", "weights", "normalization")
RUN_RULES = ("feature", "finite", "together", "time")
MIN_NODES = 8
# Types of 4 bytes or more. Narrower types (float16, int8) would reduce the size of a large network.
WIDE = "FLOAT DOUBLE INT32 INT64 UINT32 UINT64 COMPLEX64 COMPLEX128 STRING".split()
NOT_CHECKED = "not checked: a rule above must pass first"


def check_submission(folder: str, limits: Limits) -> list[Rule]:
    """Checks the model in a folder by the limits of a track.

    Returns:
        All rules in order; one that could not be checked fails.

    Raises:
        OSError: The folder or a file cannot be read.
    """
    rules, path = check_files(folder, limits)
    pixels = PixelSettings()
    if path is not None and limits.custom_pixels:
        pixel_rules, pixels = check_pixel_files(folder)
        rules += pixel_rules
    if path is not None:
        rules += _check_model(path, pixels, limits)
    checked = {rule.name: rule for rule in rules}
    names = FILE_RULES + (PIXEL_RULES if limits.custom_pixels else ()) + MODEL_RULES + RUN_RULES
    return [checked.get(name, Rule(name, False, NOT_CHECKED)) for name in names]


def _check_model(path: str, pixels: PixelSettings, limits: Limits) -> list[Rule]:
    try:  # not FaceModel, which would refuse some models before the rules can
        session = open_session(path)
    except ValueError as error:
        return [Rule("loads", False, str(error))]
    graph = onnx.load(path, load_external_data=False).graph
    signature = check_signature(session, pixels.image_size)
    loads = Rule("loads", True, f"onnxruntime {onnxruntime.__version__}")
    nodes = Rule("nodes", len(graph.node) >= MIN_NODES, f"{len(graph.node)}, at least {MIN_NODES}")
    normalization, norm = _normalization(pixels, takes_raw_pixels(node.name for node in graph.node))
    rules = [loads, *signature, nodes, _check_weights(graph), Rule("normalization", True, normalization)]
    if not signature[0].passed:
        return rules
    height, width = session.get_inputs()[0].shape[2:]
    dynamic_size = not (isinstance(height, int) and isinstance(width, int))
    faces = sample_faces(pixels.image_size if dynamic_size else (height, width), *norm)
    return rules + check_runs(session, faces, limits)


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


def _normalization(pixels: PixelSettings, takes_raw: bool) -> tuple[str, tuple[float, float]]:
    """Describes the normalization that the challenge applies before the model: (mean, deviation), (0, 1) for none."""
    mean, deviation = pixels.norm or ((0.0, 1.0) if takes_raw else (MEAN, 1 / SCALE))
    text = f"(x - {mean:g}) / {deviation:g} before the model"
    if pixels.norm:
        text = f"{text}, from {PIXELS}"
    elif takes_raw:
        text = f"by the model: its first {FIRST_NODES} nodes include a Sub and a Mul, by name"
    else:
        text = f"{text}: its first {FIRST_NODES} nodes lack a Sub or a Mul, by name"
    return text, (mean, deviation)


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
