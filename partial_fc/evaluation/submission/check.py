"""Checks a submission to the masked-face challenge by all rules; a failed rule does not hide the others.

The check of the challenge differs: it makes a fixed batch size dynamic, reports the sixth fastest of 50 runs without
warm-up as the time, and does not compare a batch of faces with the same faces one by one.
"""

from __future__ import annotations

import onnx
import onnxruntime

from partial_fc.inference.model import open_session

from .files import PixelSettings, check_files, check_pixel_files
from .graph import check_graph, check_signature, pixel_norm
from .rules import Limits, Rule
from .runs import check_runs, sample_faces

FILE_RULES = ("folder", "file", "size")
PIXEL_RULES = ("crop.txt", "pixel_norm.txt")
MODEL_RULES = ("loads", "input", "batch", "image", "output", "nodes", "weights", "normalization")
RUN_RULES = ("feature", "finite", "together", "time")
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
    rules = [loads, *signature, *check_graph(graph, pixels)]
    if not signature[0].passed:
        return rules
    height, width = session.get_inputs()[0].shape[2:]
    dynamic_size = not (isinstance(height, int) and isinstance(width, int))
    faces = sample_faces(pixels.image_size if dynamic_size else (height, width), *pixel_norm(graph, pixels))
    return rules + check_runs(session, faces, limits)
