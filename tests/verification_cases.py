"""Test cases for verification during training on any number of ranks, shared by both trainers."""

import contextlib

import cv2
import numpy as np
import pytest

from partial_fc.data.pairs_bin import write_pairs
from partial_fc.distributed.errors import JobError, StopRequested
from partial_fc.training.embedder import Embedder
from partial_fc.training.tasks.faces import FacePairs
from partial_fc.training.verifying import CallBackVerification

SIDE, E = 8, 4
PAIRS = [(40, 6), (23, 5), (2, 4), (1, 4)]  # numbers of pairs, batch sizes


def draw_images(count):
    """Draws random images, where the second of every other pair resembles the first."""
    rng = np.random.default_rng(count)
    images = rng.integers(0, 256, (count, SIDE, SIDE, 3), np.uint8)
    images[1::4] = images[0::4] // 2 + images[1::4] // 2
    return images


def write_set(path, images, collectives, damaged=None):
    encoded = [cv2.imencode(".png", image[:, :, ::-1])[1].tobytes() for image in images]
    if damaged is not None:
        encoded[damaged] = encoded[damaged][:50]
    issame = np.arange(len(images) // 2) % 2 == 0
    collectives.on_rank_zero("write_set", write_pairs, path, encoded, issame)
    return issame


def measure(engine, batch, path, **arguments):
    """Returns an evaluation that has been measured once."""
    evaluation = FacePairs(path, SIDE, **arguments)
    evaluation.share = engine.collectives.run_on_all_ranks("load", lambda: evaluation.load("set", engine.collectives))
    engine.average_statistics()
    with contextlib.suppress(JobError):  # too few pairs for accuracies
        evaluation.measure(Embedder(engine, batch, "set"))
    return evaluation


def distances_are_those_of_one_rank(engine, expected_embeddings, folder, pairs, batch):
    """``expected_embeddings(images)`` returns the embeddings of images and of mirrored images in float64."""
    collectives, images = engine.collectives, draw_images(2 * pairs)
    issame = write_set(f"{folder}/set.bin", images, collectives)
    figures = measure(engine, batch, f"{folder}/set.bin").last
    plain, mirrored = expected_embeddings(images)
    total = plain + mirrored
    unit = total / np.linalg.norm(total, axis=1, keepdims=True)
    np.testing.assert_allclose(figures.distance, np.sum((unit[0::2] - unit[1::2]) ** 2, axis=1), atol=1e-5)
    np.testing.assert_array_equal(figures.issame, issame)
    lengths = [np.linalg.norm(embeddings, axis=1).mean() for embeddings in (plain, mirrored)]
    assert figures.xnorm == pytest.approx(np.mean(lengths), rel=1e-5)
    evaluation = measure(engine, batch, f"{folder}/set.bin", mirrored=False)
    alone = evaluation.last
    unit = plain / np.linalg.norm(plain, axis=1, keepdims=True)
    np.testing.assert_allclose(alone.distance, np.sum((unit[0::2] - unit[1::2]) ** 2, axis=1), atol=1e-5)
    assert alone.xnorm == pytest.approx(lengths[0], rel=1e-5)
    # Each rank keeps only the images of its own pairs.
    kept = collectives.gather_object("kept", evaluation.share.num_items)
    assert sum(kept) == 2 * pairs and max(kept) <= 2 * -(-pairs // collectives.size)


def a_stop_request_ends_a_verification_on_all_ranks(engine, folder, monkeypatch):
    """Only the last rank receives the request, after some parts; catch_up then repeats the verification."""
    collectives, asked = engine.collectives, []
    write_set(f"{folder}/set.bin", draw_images(80), collectives)
    callback = CallBackVerification(engine, 6, {"set": FacePairs(f"{folder}/set.bin", SIDE)}, 5)
    callback.prepare()
    with monkeypatch.context() as patch:
        patch.setattr(
            collectives, "stop_requested", lambda: asked.append(1) or (_is_last(collectives) and len(asked) > 2)
        )
        with pytest.raises(StopRequested):
            callback.verify_all(5)
    assert len(asked) == 3 and callback.history == {"set": []}
    for num_update in (4, 5, 5):
        callback.catch_up(num_update)
    assert [point.num_update for point in callback.history["set"]] == [5]


def _is_last(collectives):
    return collectives.rank == collectives.size - 1
