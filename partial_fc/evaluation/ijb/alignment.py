"""From an image and five landmarks to the face that models take: 112x112, eyes and mouth where ArcFace has them.

Shapes: N images, H, W image size.
"""

from __future__ import annotations

import cv2
import numpy as np

from partial_fc.data.transforms import decode_any_size

SIZE = 112
# Where the landmarks of an aligned face lie, x and y in pixels: left eye, right eye, nose, corners of the mouth, as
# insightface publishes them for 112x112 (those of 112x96 moved by 8).
ARCFACE = np.array([(38.2946, 51.6963), (73.5318, 51.5014), (56.0252, 71.7366), (41.5493, 92.3655), (70.7299, 92.2041)])


def similarities(landmarks: np.ndarray) -> np.ndarray:
    """(N, 2, 3) float64: the turn, scale and shift that bring landmarks (N, 5, 2) closest to ARCFACE, each.

    Closest in squared distance, as Umeyama's method has it (IEEE PAMI 13, 1991). In the plane such a map is w = a z + b
    over the complex numbers, and the best a and b are those of linear regression; mirror images cannot come out.
    Landmarks on one point have no such map: their numbers are not finite.
    """
    z = landmarks[..., 0] + 1j * landmarks[..., 1]
    w = ARCFACE[:, 0] + 1j * ARCFACE[:, 1]
    centred = z - z.mean(axis=-1, keepdims=True)
    a = (centred.conj() * (w - w.mean())).sum(axis=-1) / (np.abs(centred) ** 2).sum(axis=-1)
    b = w.mean() - a * z.mean(axis=-1)
    rows = [np.stack([a.real, -a.imag, b.real], axis=-1), np.stack([a.imag, a.real, b.imag], axis=-1)]
    return np.stack(rows, axis=-2)


def align(image: np.ndarray, similarity: np.ndarray) -> np.ndarray:
    """(112, 112, 3) uint8: the image (H, W, 3) moved by `similarity` (2, 3); black where it has no pixels."""
    aligned: np.ndarray = cv2.warpAffine(image, similarity, (SIZE, SIZE), borderValue=(0.0, 0.0, 0.0))
    return aligned


def read_rgb(path: str) -> np.ndarray:
    """(H, W, 3) uint8 RGB of an image file. Raises OSError if it cannot be read, ValueError naming it if damaged."""
    with open(path, "rb") as file:
        encoded = file.read()
    try:
        return decode_any_size(encoded)
    except ValueError as error:
        raise ValueError(f"{path} {error}: copy it again") from None
