"""Runs a submitted model: checks its embeddings and measures its speed.

Shapes: E embedding, H, W image size.
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

FACES = 8  # in a batch
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
        singles = [run(face[None]) for face in faces]
    except Exception as error:  # onnxruntime's errors have no common base class
        yield Rule("feature", False, f"the model fails to run: {first_line(error)}")
        return
    shape = singles[0].shape
    if any(embedding.shape != shape for embedding in singles):
        yield Rule("feature", False, "the shape depends on the pixels of the face")
        return
    passed = len(shape) == 2 and shape[0] == 1 and 0 < shape[1] <= limits.features
    yield Rule("feature", passed, f"{list(shape)} for one face; at most [1, {limits.features}]")
    yield Rule("finite", all(bool(np.isfinite(row).all()) for row in singles), f"embeddings of {FACES} faces")
    yield _check_batch(run, faces, singles)
    seconds = []
    for _ in range(WARM_UP + RUNS):
        start = time.perf_counter()
        run(faces[:1])
        seconds.append(time.perf_counter() - start)
    median = float(np.median(seconds[WARM_UP:])) * 1000
    provider, threads = session.get_providers()[0], session.get_session_options().intra_op_num_threads
    device = f"{provider}, {plural(threads, 'thread')}" if provider.startswith("CPU") else provider
    figure = f"{median:.2f} ms, at most {limits.milliseconds:g}: median of {RUNS} runs of one face on {device}"
    yield Rule("time", median <= limits.milliseconds, figure)


def _check_batch(run: Callable[[np.ndarray], np.ndarray], faces: np.ndarray, singles: list[np.ndarray]) -> Rule:
    """Checks that a batch gives the embeddings of the same faces one by one."""
    try:
        batch = run(faces)
    except Exception as error:
        return Rule("together", False, f"a batch of {len(faces)} faces fails to run: {first_line(error)}")
    if batch.shape != (len(faces), *singles[0].shape[1:]) or batch.size != len(faces) * singles[0].size:
        return Rule("together", False, f"a batch of {len(faces)} faces returns shape {list(batch.shape)}")
    expected, rows = (np.reshape(embeddings, (len(faces), -1)) for embeddings in (singles, batch))
    with np.errstate(invalid="ignore", divide="ignore"):
        # NaN if any embedding is not finite, which then fails the comparison.
        worst = np.max(np.linalg.norm(expected - rows, axis=1) / np.linalg.norm(expected, axis=1))
    figure = f"a batch of {len(faces)} differs from single faces by {worst:.1g}, at most {TOLERANCE:g}"
    return Rule("together", bool(worst <= TOLERANCE), figure)


def sample_faces(image_size: tuple[int, int], mean: float, deviation: float) -> np.ndarray:
    """Returns (FACES, 3, H, W) float32 synthetic faces, normalized by (x - mean) / deviation."""
    faces = np.stack([resize(draw_face(0, person, 0), image_size) for person in range(FACES)])
    return np.ascontiguousarray((faces.transpose(0, 3, 1, 2).astype(np.float32) - mean) / deviation, np.float32)
