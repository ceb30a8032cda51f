"""The rules of the masked-face challenge on what a model gives, and in which time.

Shapes: N faces, E embedding, H, W image size.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import onnxruntime

from partial_fc.data.encoding import resize
from partial_fc.data.synthetic.draw import draw_face
from partial_fc.inference.model import first_line

from .rules import Limits, Rule

FACES = 8  # given at once
WARM_UP, RUNS = 10, 50
# Length of the difference of two embeddings, by their length: GPUs that multiply with 10 bits (TF32) are at 1e-3,
# another face in the same place is near 1.
SAME = 1e-2


class Runs(NamedTuple):
    """The rules, and `milliseconds` of one face: the median; None for a model that does not run."""

    rules: list[Rule]
    milliseconds: float | None


def check_runs(session: onnxruntime.InferenceSession, faces: np.ndarray, limits: Limits, device: str) -> Runs:
    """Run a model of one input on faces (FACES, 3, H, W) float32: alone, together, and against the clock."""
    name = session.get_inputs()[0].name
    try:
        alone = [session.run(None, {name: face[None]})[0] for face in faces]
    except Exception as error:  # onnxruntime's own, without a common class
        return Runs([Rule("feature", False, f"the model does not run: {first_line(error)}")], None)
    shape = alone[0].shape
    rules = [
        Rule(
            "feature",
            len(shape) == 2 and shape[0] == 1 and 0 < shape[1] <= limits.features,
            f"{list(shape)} of one face; [1, {limits.features}] at most",
        ),
        Rule("finite", all(bool(np.isfinite(each).all()) for each in alone), f"embeddings of {FACES} faces"),
        _check_together(session, name, faces, alone),
    ]
    median = median_milliseconds(session, faces[0])
    figure = f"{median:.2f} ms, at most {limits.milliseconds:g}: median of {RUNS} single faces on {device}"
    rules.append(Rule("time", median <= limits.milliseconds, figure))
    return Runs(rules, median)


def median_milliseconds(session: onnxruntime.InferenceSession, face: np.ndarray) -> float:
    """The time of one face (3, H, W) alone: the median of RUNS, after WARM_UP that do not count."""
    feed = {session.get_inputs()[0].name: face[None]}
    seconds = []
    for _ in range(WARM_UP + RUNS):
        start = time.perf_counter()
        session.run(None, feed)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds[WARM_UP:])) * 1000


def sample_faces(image_size: tuple[int, int], mean: float, deviation: float) -> np.ndarray:
    """(FACES, 3, H, W) float32 synthetic faces, (x - mean) / deviation."""
    faces = np.stack([resize(draw_face(0, person, 0), image_size) for person in range(FACES)])
    return np.ascontiguousarray((faces.transpose(0, 3, 1, 2).astype(np.float32) - mean) / deviation, np.float32)


def _check_together(
    session: onnxruntime.InferenceSession, name: str, faces: np.ndarray, alone: list[np.ndarray]
) -> Rule:
    try:
        together = session.run(None, {name: faces})[0]
    except Exception as error:
        return Rule("together", False, f"{len(faces)} faces at once do not run: {first_line(error)}")
    if together.shape != (len(faces), *alone[0].shape[1:]) or together.size != len(faces) * alone[0].size:
        return Rule("together", False, f"{len(faces)} faces at once give {list(together.shape)}")
    pairs = [(one.ravel(), many.ravel()) for one, many in zip(alone, together)]
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = [float(np.linalg.norm(one - many) / np.linalg.norm(one)) for one, many in pairs]
    worst = max(apart, key=lambda value: np.inf if np.isnan(value) else value)
    return Rule(
        "together", worst <= SAME, f"{len(faces)} at once differ from one by one by {worst:.1g}, at most {SAME:g}"
    )
