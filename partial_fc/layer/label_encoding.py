"""Labels as float32, to travel in one array with features, and a word of the rank that sends them.

Shapes: B local batch, G global batch, C classes.
"""

from __future__ import annotations

import numpy as np

# A label travels as two digits to this base, both exact in float32.
BASE = 2**24
DIGITS = 2
# The upper digit has room for more than labels: its three highest bits are the word. Labels stay below 2^45.
WORD_PLACE = 2**21
WORDS = 8


def encode_labels(labels: np.ndarray, num_classes: int, word: int = 0) -> np.ndarray:
    """(B,) integers -> (B, 2) float32.

    Args:
        labels: (B,) of the batch.
        num_classes: C.
        word: 0..7, what this rank has to tell the others; it costs no collective and no byte.

    Raises:
        ValueError: a label is not one of the C classes.
    """
    wrong = labels[(labels < 0) | (labels >= num_classes)]
    if len(wrong):
        raise ValueError(f"label {wrong[0]} is not one of the {num_classes} classes 0..{num_classes - 1}")
    return np.stack([labels // BASE + word * WORD_PLACE, labels % BASE], axis=1).astype(np.float32)


def decode_labels(digits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(G, 2) float32 -> labels (G,) int64, and beside each the word (G,) int64 of the rank that sent it."""
    high, low = digits.astype(np.int64).T
    return high % WORD_PLACE * BASE + low, high // WORD_PLACE
