"""Distances of embeddings, pair by pair. Shapes: P pairs, E embedding."""

from __future__ import annotations

import numpy as np


def squared_distances(embeddings: np.ndarray) -> np.ndarray:
    """(P,) float64: the squared distance of embeddings 2i and 2i + 1 of (2P, E), each normalized to length 1.

    An embedding of zeros stays zero, at distance 1.
    """
    left, right = embeddings[0::2], embeddings[1::2]

    def inner(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.einsum("pe,pe->p", a, b, dtype=np.float64)

    lengths = np.sqrt(inner(left, left)), np.sqrt(inner(right, right))
    product = lengths[0] * lengths[1]
    with np.errstate(invalid="ignore"):  # what is not finite must show in the distance: 0 times it is not a number
        squares = [(length > 0) + 0 * length for length in lengths]
        cosine = inner(left, right) / np.where(product == 0, 1.0, product)
    return np.clip(squares[0] + squares[1] - 2 * cosine, 0, 4)
