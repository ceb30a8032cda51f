"""Aligns faces by five landmarks to the 112x112 crop of ArcFace.

Shapes: N images, H, W image size.
"""

import cv2
import numpy as np

from partial_fc.data.transforms import decode_any_size
from partial_fc.utils.regular_files import read_image_file

SIZE = 112
# Landmarks of an aligned face, (x, y) in pixels: left eye, right eye, nose, left and right corner of the mouth, as
# insightface publishes them for 112x112 (its landmarks for 112x96, shifted by 8 pixels).
ARCFACE = np.array([(38.2946, 51.6963), (73.5318, 51.5014), (56.0252, 71.7366), (41.5493, 92.3655), (70.7299, 92.2041)])


def similarities(landmarks: np.ndarray) -> np.ndarray:
    """Returns (N, 2, 3) float64: the similarity transforms that map landmarks (N, 5, 2) to ARCFACE.

    Least squares over rotation, scale and translation, as in Umeyama's method (IEEE PAMI 13, 1991). In the plane such a
    map is w = a z + b over the complex numbers, so linear regression gives a and b, and never a reflection. Landmarks
    that all coincide have no such transform: the result is not finite.
    """
    z = landmarks[..., 0] + 1j * landmarks[..., 1]
    w = ARCFACE[:, 0] + 1j * ARCFACE[:, 1]
    centered = z - z.mean(axis=-1, keepdims=True)
    a = (centered.conj() * (w - w.mean())).sum(axis=-1) / (np.abs(centered) ** 2).sum(axis=-1)
    b = w.mean() - a * z.mean(axis=-1)
    rows = [np.stack([a.real, -a.imag, b.real], axis=-1), np.stack([a.imag, a.real, b.imag], axis=-1)]
    return np.stack(rows, axis=-2)


def align(image: np.ndarray, similarity: np.ndarray) -> np.ndarray:
    """Returns (112, 112, 3) uint8: the image (H, W, 3) transformed by ``similarity`` (2, 3), black outside."""
    aligned: np.ndarray = cv2.warpAffine(image, similarity, (SIZE, SIZE), borderValue=(0.0, 0.0, 0.0))
    return aligned


def read_rgb(path: str, root: str) -> np.ndarray:
    """Reads an image file in the folder `root`: (H, W, 3) uint8 RGB.

    Raises:
        OSError: The file cannot be read.
        ValueError: The image is damaged. The message names the file.
    """
    encoded = read_image_file(path, root)
    try:
        return decode_any_size(encoded)
    except ValueError as error:
        raise ValueError(f"{path} {error}: copy it again") from None
