"""Checks that an ONNX file computes the same embeddings as the backbone it was exported from.

Shapes: N faces, H, W image size, E embedding.
"""

from __future__ import annotations

import numpy as np
import onnx

from .model import FaceModel, first_line

MAX_COSINE_DISTANCE = 1e-4
RANDOM_FACES = 4


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


def check_form(content: bytes, name: str) -> FaceModel:
    """Loads an ONNX file and checks that it is valid.

    Args:
        content: Content of the file.
        name: Name for error messages.

    Returns:
        The model.

    Raises:
        ValueError: The file is not valid, has a fixed batch size, or does not take raw pixels.
    """
    try:
        onnx.checker.check_model(content, full_check=True)
    except Exception as error:  # errors of the checker have no common base class
        raise ValueError(f"{name} is not a valid ONNX model: {first_line(error)}") from None
    model = FaceModel(content, name)
    if model.input.batch is not None or not model.input.normalizes:
        raise ValueError(f"{name} takes {model.input}, expected a dynamic batch size and raw pixels")
    return model


def check_onnx(content: bytes, name: str, faces: np.ndarray, expected: np.ndarray) -> None:
    """Checks that an ONNX file is valid and computes the expected embeddings, one face at a time and all at once.

    Args:
        content: Content of the file.
        name: Name for error messages.
        faces: (N, H, W, 3) uint8 RGB.
        expected: (N, E) embeddings of the faces.

    Raises:
        ValueError: The file is not valid.
        EmbeddingMismatch: The embeddings differ. The message gives the distance.
    """
    model = check_form(content, name)
    distances = [cosine_distances(model.embed(faces, size), expected) for size in (1, len(faces))]
    worst = float(np.max(distances))
    if not worst < MAX_COSINE_DISTANCE:  # true for NaN, too
        raise EmbeddingMismatch(
            f"{name} computes other embeddings than the backbone it was exported from: cosine distance {worst:.3g}, "
            f"allowed {MAX_COSINE_DISTANCE:g}"
        )
