"""Normalized embeddings, and the distances of pairs.

Shapes: N embeddings, P pairs, E embedding.
"""

from collections.abc import Sequence

import numpy as np


def normalized(rows: np.ndarray) -> np.ndarray:
    """Returns rows (N, E) scaled to length 1; rows that are zero or not finite become zeros."""
    lengths = np.sqrt(np.einsum("ne,ne->n", rows, rows, dtype=np.float64))
    good = np.isfinite(lengths) & (lengths > 0)
    unit = np.zeros_like(rows)
    unit[good] = rows[good] / lengths[good, None]
    return unit


def check_finite(rows: np.ndarray, names: Sequence[str]) -> None:
    """Raises ValueError, which names the first row of (N, E) that is not finite."""
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        raise ValueError(f"{names[bad[0]]} has an embedding that is not finite: replace it, or the model")


def squared_distances(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Returns (P,) float64, the squared distances between the normalized rows of two arrays (P, E).

    A zero row remains zero: its squared distance to a unit vector is 1. Rows that are not finite give NaN.
    """

    def inner(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.einsum("pe,pe->p", a, b, dtype=np.float64)

    lengths = np.sqrt(inner(left, left)), np.sqrt(inner(right, right))
    product = lengths[0] * lengths[1]
    with np.errstate(invalid="ignore"):  # 0 * length is NaN for a length that is not finite
        squares = [(length > 0) + 0 * length for length in lengths]
        cosine = inner(left, right) / np.where(product == 0, 1.0, product)
    return np.clip(squares[0] + squares[1] - 2 * cosine, 0, 4)
