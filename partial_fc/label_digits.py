"""Labels as float32, to travel in one array with features.

Shapes: B local batch, G global batch, C classes.
"""

from __future__ import annotations

import numpy as np

# A label travels as two digits to this base, both exact in float32: labels up to 2^48 arrive as they left.
BASE = 2**24
DIGITS = 2


def to_digits(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """(B,) integers -> (B, 2) float32.

    Raises:
        ValueError: a label is not one of the C classes.
    """
    wrong = labels[(labels < 0) | (labels >= num_classes)]
    if len(wrong):
        raise ValueError(f"label {wrong[0]} is not one of the {num_classes} classes 0..{num_classes - 1}")
    return np.stack([labels // BASE, labels % BASE], axis=1).astype(np.float32)


def from_digits(digits: np.ndarray) -> np.ndarray:
    """(G, 2) float32 -> (G,) int64."""
    high, low = digits.astype(np.int64).T
    return high * BASE + low
