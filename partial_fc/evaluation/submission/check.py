"""A submission to the masked-face challenge, checked by all its rules: a rule that fails does not hide the others.

Where the challenge's own check differs: it makes a fixed batch open by itself, takes the sixth fastest of 50 runs
without a warm-up as the time, and does not compare several faces at once with the same one by one.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import onnx
import onnxruntime

from partial_fc.distributed import env as launch
from partial_fc.inference.model import best_providers, first_line
from partial_fc.utils.text import plural

from .files import OwnPixels, check_files, check_own_pixels
from .graph import check_graph, check_signature, pixel_norm
from .rules import MEGABYTE, Limits, Rule
from .runs import check_runs, sample_faces

OF_FILES = ("folder", "file", "size")
OF_OWN_PIXELS = ("crop.txt", "pixel_norm.txt")
OF_MODEL = ("loads", "input", "batch", "image", "output", "nodes", "weights", "normalisation")
OF_RUNS = ("feature", "finite", "together", "time")


class Report(NamedTuple):
    """The rules in order; size of the model in 2^20 bytes, milliseconds of one face and what they were measured on,
    each None where there is none."""

    rules: list[Rule]
    megabytes: float | None = None
    milliseconds: float | None = None
    device: str | None = None

    @property
    def passed(self) -> bool:
        """Whether all rules are kept."""
        return all(rule.passed for rule in self.rules)


def check_submission(folder: str, limits: Limits) -> Report:
    """Check the model in a folder.

    Args:
        folder: of the submission.
        limits: of the track, see TRACKS.

    Raises:
        OSError: the folder or a file cannot be read.
    """
    rules, path = check_files(folder, limits)
    own = OwnPixels()
    if path is not None and limits.own_pixels:
        pixel_rules, own = check_own_pixels(folder)
        rules += pixel_rules
    report = Report(rules)
    if path is not None:
        report = _check_model(path, own, limits)
        report = report._replace(rules=rules + report.rules, megabytes=os.path.getsize(path) / MEGABYTE)
    return report._replace(rules=_completed(report.rules, limits))


def open_session(path: str) -> onnxruntime.InferenceSession:
    """The model as the challenge opens it, whatever it takes and gives: FaceModel would refuse some before a rule does.

    Raises:
        ValueError: onnxruntime does not load it.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = launch.share_cores(dict(os.environ))
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(path, options, providers=best_providers())
    except Exception as error:  # onnxruntime's own, without a common class
        raise ValueError(first_line(error)) from None


def device_of(session: onnxruntime.InferenceSession) -> str:
    """What a session computes on."""
    provider = session.get_providers()[0]
    threads = session.get_session_options().intra_op_num_threads
    return f"{provider}, {plural(threads, 'thread')}" if provider.startswith("CPU") else str(provider)


def _check_model(path: str, own: OwnPixels, limits: Limits) -> Report:
    version = f"onnxruntime {onnxruntime.__version__}"
    try:
        session = open_session(path)
    except ValueError as error:
        return Report([Rule("loads", False, f"not by {version}: {error}")])
    graph = onnx.load(path, load_external_data=False).graph
    signature = check_signature(session, own.image_size)
    rules = [Rule("loads", True, f"by {version}"), *signature, *check_graph(graph, own)]
    if not signature[0].passed:
        return Report(rules)
    height, width = session.get_inputs()[0].shape[2:]
    open_size = not (isinstance(height, int) and isinstance(width, int))
    faces = sample_faces(own.image_size if open_size else (height, width), *pixel_norm(graph, own))
    device = device_of(session)
    runs = check_runs(session, faces, limits, device)
    return Report(rules + runs.rules, milliseconds=runs.milliseconds, device=device)


def _completed(rules: list[Rule], limits: Limits) -> list[Rule]:
    """All rules in order; one that could not be checked is not kept."""
    found = {rule.name: rule for rule in rules}
    names = OF_FILES + (OF_OWN_PIXELS if limits.own_pixels else ()) + OF_MODEL + OF_RUNS
    return [found.get(name, Rule(name, False, "not checked: it needs a rule above that fails")) for name in names]
