"""Checks that an ONNX file computes the same embeddings as the backbone it was exported from.

Shapes: N faces, H, W image size, E embedding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import onnx

from .model import FaceModel, first_line

MAX_COSINE_DISTANCE = 1e-4
RANDOM_FACES = 4
PIXEL_STEP = 1e-4  # of 255
NAME = "the ONNX file of this backbone"


class EmbeddingMismatch(ValueError):
    """An ONNX file computes other embeddings than the backbone it was exported from."""


def random_faces(image_size: tuple[int, int], count: int = RANDOM_FACES) -> np.ndarray:
    """Returns (count, H, W, 3) uint8 noise, the same on every call: a harder test than faces."""
    return np.random.default_rng(0).integers(0, 256, (count, *image_size, 3), np.uint8)


def cosine_distances(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Returns (N,) float64: 1 - cosine of the rows of two arrays (N, E)."""
    left, right = left.astype(np.float64), right.astype(np.float64)
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    cosines = np.einsum("ne,ne->n", left, right) / np.where(lengths > 0, lengths, 1.0)
    # Two zero embeddings are equal; a zero embedding and another one are at distance 1.
    return np.where(lengths > 0, 1 - cosines, (left != right).any(axis=1).astype(np.float64))


def check_form(content: bytes, name: str = NAME, raw_pixels: bool = True) -> FaceModel:
    """Loads an ONNX file and checks that it is valid.

    Args:
        content: Content of the file.
        name: Name for error messages.
        raw_pixels: Whether the model has to take pixels 0..255 and normalize them itself, or normalized ones.

    Returns:
        The model.

    Raises:
        ValueError: The file is not valid, has a fixed batch size, or takes pixels of the other kind.
    """
    try:
        onnx.checker.check_model(content, full_check=True)
    except Exception as error:  # errors of the checker have no common base class
        raise ValueError(f"{name} is not a valid ONNX model: {first_line(error)}") from None
    model = FaceModel(content, name)
    if model.input.batch is not None or model.input.normalizes != raw_pixels:
        pixels = "raw" if raw_pixels else "normalized"
        raise ValueError(f"{name} takes {model.input}, expected a dynamic batch size and {pixels} pixels")
    return model


def check_onnx(content: bytes, name: str, faces: np.ndarray, expected: np.ndarray, raw_pixels: bool = True) -> None:
    """Checks that an ONNX file is valid and computes the expected embeddings, one face at a time and all at once.

    Args:
        content: Content of the file.
        name: Name for error messages.
        faces: (N, H, W, 3) uint8 RGB.
        expected: (N, E) embeddings of the faces.
        raw_pixels: See `check_form`.

    Raises:
        ValueError: The file is not valid.
        EmbeddingMismatch: The embeddings differ. The message gives the distance.
    """
    model = check_form(content, name, raw_pixels)
    distances = [cosine_distances(model.embed(faces, size), expected) for size in (1, len(faces))]
    worst = float(np.max(distances))
    if not worst < MAX_COSINE_DISTANCE:  # true for NaN, too
        raise EmbeddingMismatch(
            f"{name} computes other embeddings than the backbone it was exported from: cosine distance {worst:.3g}, "
            f"allowed {MAX_COSINE_DISTANCE:g}"
        )


def check_export(
    content: bytes,
    faces: np.ndarray,
    embed: Callable[[np.ndarray], np.ndarray],
    framework: str,
    raw_pixels: bool = True,
) -> None:
    """Checks that the ONNX file of a backbone computes the embeddings of its framework.

    If the framework's own embeddings are not finite, or change as much when pixels change by PIXEL_STEP, the network
    cannot be compared, and a warning is logged instead: so are deep networks whose running statistics are still those
    of the start.

    Args:
        content: Content of the file.
        faces: (N, H, W, 3) uint8 RGB, N >= 0; they are compared beside random images.
        embed: Faces (n, H, W, 3), uint8 or float32 -> (n, E) by the framework.
        framework: Its name, for messages.
        raw_pixels: See `check_form`.

    Raises:
        ValueError: The file is not valid, or the embeddings differ by a cosine distance above 1e-4.
    """
    faces = np.concatenate([random_faces((faces.shape[1], faces.shape[2])), faces])
    expected = embed(faces)
    if not np.isfinite(expected).all():
        check_form(content, NAME, raw_pixels)
        logging.warning("%s is not compared: %s's own embeddings are not finite, as before training", NAME, framework)
        return
    try:
        check_onnx(content, NAME, faces, expected, raw_pixels)
    except EmbeddingMismatch as error:
        distance = float(cosine_distances(expected, embed(faces + np.float32(PIXEL_STEP))).max())
        if not distance > MAX_COSINE_DISTANCE:
            raise
        logging.warning(
            "%s; but %s's own embeddings change by %.3g when pixels change by %g: this network is chaotic, as deep "
            "ones are before training, so the file is kept",
            error,
            framework,
            distance,
            PIXEL_STEP,
        )
