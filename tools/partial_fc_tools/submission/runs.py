"""Runs a submitted model: checks its embeddings and its speed.

Shapes: N faces, E embedding, H, W image size.
"""

import time
from collections.abc import Callable, Iterator

import numpy as np
import onnxruntime

from partial_fc.data.encoding import resize
from partial_fc.data.synthetic.draw import draw_face
from partial_fc.export.model_file import first_line
from partial_fc.utils.text import plural

from .rules import Limits, Rule

FACES = 8  # of the batch
WARM_UP, RUNS = 10, 50
# Relative difference of two embeddings: about 1e-3 on GPUs that multiply with 10-bit mantissas (TF32), about 1 for
# another face.
TOLERANCE = 1e-2


def check_runs(
    session: onnxruntime.InferenceSession, faces: np.ndarray, limits: Limits, options: onnxruntime.RunOptions
) -> Iterator[Rule]:
    """Runs a model with one input on faces (FACES, 3, H, W) float32: one by one, as a batch, and timed."""
    name = session.get_inputs()[0].name

    def run(faces: np.ndarray) -> np.ndarray:
        output: np.ndarray = session.run(None, {name: faces}, options)[0]
        return output

    try:
        alone = [run(face[None]) for face in faces]
    except Exception as error:  # errors of onnxruntime have no common base class
        yield Rule("feature", False, f"the model fails to run: {first_line(error)}")
        return
    shape = alone[0].shape
    if any(each.shape != shape for each in alone):
        yield Rule("feature", False, "the shape depends on the pixels of the face")
        return
    passed = len(shape) == 2 and shape[0] == 1 and 0 < shape[1] <= limits.features
    yield Rule("feature", passed, f"{list(shape)} for one face; at most [1, {limits.features}]")
    yield Rule("finite", all(bool(np.isfinite(each).all()) for each in alone), f"embeddings of {FACES} faces")
    yield _check_batch(run, faces, alone)
    yield _check_time(session, lambda: run(faces[:1]), limits)


def _check_time(session: onnxruntime.InferenceSession, run: Callable[[], object], limits: Limits) -> Rule:
    seconds = []
    for _ in range(WARM_UP + RUNS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    median = float(np.median(seconds[WARM_UP:])) * 1000
    provider, threads = session.get_providers()[0], session.get_session_options().intra_op_num_threads
    device = f"{provider}, {plural(threads, 'thread')}" if provider.startswith("CPU") else provider
    figure = f"{median:.2f} ms, at most {limits.milliseconds:g}: median of {RUNS} runs of one face on {device}"
    return Rule("time", median <= limits.milliseconds, figure)


def sample_faces(image_size: tuple[int, int], mean: float, deviation: float) -> np.ndarray:
    """Returns (FACES, 3, H, W) float32 synthetic faces, normalized by (x - mean) / deviation."""
    faces = np.stack([resize(draw_face(0, person, 0), image_size) for person in range(FACES)])
    return np.ascontiguousarray((faces.transpose(0, 3, 1, 2).astype(np.float32) - mean) / deviation, np.float32)


def _check_batch(run: Callable[[np.ndarray], np.ndarray], faces: np.ndarray, alone: list[np.ndarray]) -> Rule:
    """Checks that a batch gives the embeddings of the same faces one by one."""
    try:
        batch = run(faces)
    except Exception as error:
        return Rule("together", False, f"a batch of {len(faces)} faces fails to run: {first_line(error)}")
    if batch.shape != (len(faces), *alone[0].shape[1:]) or batch.size != len(faces) * alone[0].size:
        return Rule("together", False, f"a batch of {len(faces)} faces returns shape {list(batch.shape)}")
    singles, rows = (np.reshape(each, (len(faces), -1)) for each in (alone, batch))
    with np.errstate(invalid="ignore", divide="ignore"):
        worst = np.max(np.linalg.norm(singles - rows, axis=1) / np.linalg.norm(singles, axis=1))  # NaN if any is
    figure = f"a batch of {len(faces)} differs from single faces by {worst:.1g}, at most {TOLERANCE:g}"
    return Rule("together", bool(worst <= TOLERANCE), figure)
