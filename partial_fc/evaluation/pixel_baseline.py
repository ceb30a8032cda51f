"""Verification with raw pixels as embeddings: the baseline that a network must exceed.

Shapes: P pairs, H, W image size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from partial_fc.inference.distances import squared_distances

from .validation_set import decode_faces

CHUNK = 256  # images; 38 MB as float32


def raw_pixel_distances(images: Sequence[bytes], image_size: int, name: str) -> np.ndarray:
    """Returns (P,) float64: squared distances of the pixels of each pair after subtraction of the mean image.

    Without the subtraction all cosines would be close to 1. ``images`` are 2P encoded images; the errors are those of
    `decode_faces`.
    """
    mean = sum(part.sum(axis=0, dtype=np.float64) for part in _decode(images, image_size, name)) / len(images)
    centered = (part.astype(np.float32) - mean.astype(np.float32) for part in _decode(images, image_size, name))
    rows = (part.reshape(len(part), -1) for part in centered)
    return np.concatenate([squared_distances(part[0::2], part[1::2]) for part in rows])


def _decode(images: Sequence[bytes], image_size: int, name: str) -> Iterator[np.ndarray]:
    return (
        decode_faces(images[start : start + CHUNK], image_size, name, start) for start in range(0, len(images), CHUNK)
    )
