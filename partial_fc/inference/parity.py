"""Whether an ONNX file gives the embeddings that it was made from.

Shapes: N faces, H, W image size, E embedding.
"""

from __future__ import annotations

import numpy as np
import onnx

from .model import FaceModel, first_line

MAX_COSINE_DISTANCE = 1e-4
RANDOM_FACES = 4


class OtherEmbeddings(ValueError):
    """A file gives other embeddings than the backbone it was made from."""


def random_faces(image_size: tuple[int, int], count: int = RANDOM_FACES) -> np.ndarray:
    """(count, H, W, 3) uint8, every pixel drawn by itself, the same on every call: far from any face, so hard."""
    return np.random.default_rng(0).integers(0, 256, (count, *image_size, 3), np.uint8)


def cosine_distances(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(N,) float64, 1 - cosine of the rows of two (N, E)."""
    left, right = left.astype(np.float64), right.astype(np.float64)
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    cosines = np.einsum("ne,ne->n", left, right) / np.where(lengths > 0, lengths, 1.0)
    # Two embeddings of zeros are the same; one of them is as far as can be.
    return np.where(lengths > 0, 1 - cosines, (left != right).any(axis=1).astype(np.float64))


def check_form(content: bytes, name: str) -> FaceModel:
    """Makes sure that an ONNX file is well-formed, and loads.

    Returns:
        The model.

    Raises:
        ValueError: it is not, or does not take any number of images as they are decoded.
    """
    try:
        onnx.checker.check_model(content, full_check=True)
    except Exception as error:  # the checker's own, of several classes
        raise ValueError(f"{name} is no sound ONNX model: {first_line(error)}") from None
    model = FaceModel(content, name)
    if model.input.batch is not None or not model.input.normalizes:
        raise ValueError(f"{name} takes {model.input}: it must take any number of raw images")
    return model


def check_onnx(content: bytes, name: str, faces: np.ndarray, expected: np.ndarray) -> None:
    """Makes sure of an ONNX file: well-formed, and right, for one face at a time and for all at once.

    Args:
        content: the file.
        name: for messages.
        faces: (N, H, W, 3) uint8 RGB.
        expected: (N, E), their embeddings.

    Raises:
        ValueError: it is not well-formed; says what is wrong.
        OtherEmbeddings: it is not right; tells the distance.
    """
    model = check_form(content, name)
    distances = [cosine_distances(model.embed(faces, size), expected) for size in (1, len(faces))]
    worst = float(np.max(distances))
    # Not <=: a distance that is no number is wrong, too.
    if not worst < MAX_COSINE_DISTANCE:
        raise OtherEmbeddings(
            f"{name} gives other embeddings than the backbone it was made from: cosine distance {worst:.3g}, and "
            f"{MAX_COSINE_DISTANCE:g} is allowed"
        )
