"""Checks a submission to the masked-face challenge by all rules; a failed rule does not hide the others.

The check of the challenge differs: it makes a fixed batch size dynamic, reports the sixth fastest of 50 runs without
warm-up as the time, and does not compare a batch of faces with the same faces one by one.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import onnx
import onnxruntime

from partial_fc.distributed.env import share_cores
from partial_fc.inference.model import best_providers, first_line
from partial_fc.utils.text import plural

from .files import PixelSettings, check_files, check_pixel_files
from .graph import check_graph, check_signature, pixel_norm
from .rules import MEGABYTE, Limits, Rule
from .runs import check_runs, sample_faces

FILE_RULES = ("folder", "file", "size")
PIXEL_RULES = ("crop.txt", "pixel_norm.txt")
MODEL_RULES = ("loads", "input", "batch", "image", "output", "nodes", "weights", "normalization")
RUN_RULES = ("feature", "finite", "together", "time")


class Report(NamedTuple):
    """Result of a check; None for what could not be measured.

    Attributes:
        rules: The rules in order.
        megabytes: Size of the model in units of 2^20 bytes.
        milliseconds: Time of one face.
        device: Device of the time measurement.
    """

    rules: list[Rule]
    megabytes: float | None = None
    milliseconds: float | None = None
    device: str | None = None

    @property
    def passed(self) -> bool:
        """Whether all rules passed."""
        return all(rule.passed for rule in self.rules)


def check_submission(folder: str, limits: Limits) -> Report:
    """Checks the model in a folder.

    Args:
        folder: Folder of the submission.
        limits: Limits of the track, see TRACKS.

    Raises:
        OSError: The folder or a file cannot be read.
    """
    rules, path = check_files(folder, limits)
    pixels = PixelSettings()
    if path is not None and limits.custom_pixels:
        pixel_rules, pixels = check_pixel_files(folder)
        rules += pixel_rules
    report = Report(rules)
    if path is not None:
        report = _check_model(path, pixels, limits)
        report = report._replace(rules=rules + report.rules, megabytes=os.path.getsize(path) / MEGABYTE)
    return report._replace(rules=_completed(report.rules, limits))


def open_session(path: str) -> onnxruntime.InferenceSession:
    """Opens the model as the challenge does. FaceModel would refuse some models before the rules can.

    Raises:
        ValueError: onnxruntime cannot load it.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = share_cores(dict(os.environ))
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(path, options, providers=best_providers())
    except Exception as error:  # errors of onnxruntime have no common base class
        raise ValueError(first_line(error)) from None


def device_of(session: onnxruntime.InferenceSession) -> str:
    """Describes the device of a session."""
    provider = session.get_providers()[0]
    threads = session.get_session_options().intra_op_num_threads
    return f"{provider}, {plural(threads, 'thread')}" if provider.startswith("CPU") else str(provider)


def _check_model(path: str, pixels: PixelSettings, limits: Limits) -> Report:
    version = f"onnxruntime {onnxruntime.__version__}"
    try:
        session = open_session(path)
    except ValueError as error:
        return Report([Rule("loads", False, f"{version} cannot load it: {error}")])
    graph = onnx.load(path, load_external_data=False).graph
    signature = check_signature(session, pixels.image_size)
    rules = [Rule("loads", True, version), *signature, *check_graph(graph, pixels)]
    if not signature[0].passed:
        return Report(rules)
    height, width = session.get_inputs()[0].shape[2:]
    dynamic_size = not (isinstance(height, int) and isinstance(width, int))
    faces = sample_faces(pixels.image_size if dynamic_size else (height, width), *pixel_norm(graph, pixels))
    device = device_of(session)
    runs = check_runs(session, faces, limits, device)
    return Report(rules + runs.rules, milliseconds=runs.milliseconds, device=device)


def _completed(rules: list[Rule], limits: Limits) -> list[Rule]:
    """Returns all rules in order; a rule that could not be checked fails."""
    checked = {rule.name: rule for rule in rules}
    names = FILE_RULES + (PIXEL_RULES if limits.custom_pixels else ()) + MODEL_RULES + RUN_RULES
    return [checked.get(name, Rule(name, False, "not checked: a rule above must pass first")) for name in names]
