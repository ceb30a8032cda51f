"""Distances of raw pixels in chunks against a computation of all pairs at once."""

import cv2
import numpy as np
import pytest

from partial_fc.evaluation import validation_set
from partial_fc.evaluation.validation_set import raw_pixel_distances


def encoded(images):
    return [cv2.imencode(".png", image[:, :, ::-1])[1].tobytes() for image in images]


@pytest.mark.parametrize("chunk", [2, 6, 256])
def test_the_mean_image_is_subtracted(chunk, monkeypatch):
    monkeypatch.setattr(validation_set, "CHUNK", chunk)
    images = np.random.default_rng(5).integers(0, 100, (10, 6, 6, 3), np.uint8)
    rest = images.reshape(10, -1).astype(np.float64)
    rest -= rest.mean(axis=0)
    rest /= np.linalg.norm(rest, axis=1, keepdims=True)
    expected = np.sum((rest[0::2] - rest[1::2]) ** 2, axis=1)
    np.testing.assert_allclose(raw_pixel_distances(encoded(images), 6, "few"), expected, rtol=1e-5)
    brighter = encoded(images + np.uint8(100))  # a constant offset has no effect
    np.testing.assert_allclose(raw_pixel_distances(brighter, 6, "few"), expected, rtol=1e-4)


def test_a_damaged_image_is_reported():
    images = encoded(np.zeros((4, 6, 6, 3), np.uint8))
    images[3] = images[3][:20]
    with pytest.raises(ValueError, match="image 3 of the validation set few cannot be decoded"):
        raw_pixel_distances(images, 6, "few")
