"""Verification by pixels alone, the baseline that a network has to beat.

Shapes: P pairs, H, W image size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from partial_fc.inference.distances import squared_distances

from .validation_set import decode_faces

AT_ONCE = 256  # images; 38 MB as float32


def raw_pixel_distances(images: Sequence[bytes], image_size: int, name: str) -> np.ndarray:
    """(P,) float64 squared distances of the 2P encoded images of the set ``name``, pixels less the mean image.

    Without the mean image every cosine would be near 1; taking it away is what makes pixels comparable at all.

    Raises:
        ValueError: an image is damaged or of another size; names it.
    """
    mean = sum(part.sum(axis=0, dtype=np.float64) for part in _decoded(images, image_size, name)) / len(images)
    rest = (part.astype(np.float32) - mean.astype(np.float32) for part in _decoded(images, image_size, name))
    return np.concatenate([squared_distances(part.reshape(len(part), -1)) for part in rest])


def _decoded(images: Sequence[bytes], image_size: int, name: str) -> Iterator[np.ndarray]:
    return (
        decode_faces(images[start : start + AT_ONCE], image_size, name, start)
        for start in range(0, len(images), AT_ONCE)
    )
