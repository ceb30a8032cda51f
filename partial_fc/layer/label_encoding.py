"""Encodes labels and rank flags as float32, so that they are gathered in one array with the features.

Shapes: B local batch, R ranks, G = B*R global batch, C classes.
"""

import enum
from types import ModuleType

import numpy as np

from . import Array

BASE = 2**24  # base of the two digits of a label; float32 represents both exactly
DIGITS = 2
FLAGS_UNIT = 2**21  # labels below 2^45 leave three of the upper digit's 24 bits to the flags


class RankFlags(enum.IntFlag):
    """Flags, at most three bits, that a rank sends to all ranks with the labels of its next step."""

    CHECKPOINT_WRITTEN = 1
    STOP_REQUESTED = 2
    CHECKPOINT_DUE = 4


def check_labels(labels: np.ndarray, num_classes: int) -> None:
    """Raises ValueError if any of the labels (B,) is not in 0..C-1."""
    invalid = labels[(labels < 0) | (labels >= num_classes)]
    if len(invalid):
        raise ValueError(f"label {invalid[0]} is not one of the {num_classes} classes 0..{num_classes - 1}")


def encode_labels(labels: Array, flags: int = 0, xp: ModuleType = np) -> Array:
    """Packs this rank's labels (B,) int64 and RankFlags into (B, 2) int64, which float32 represents exactly.

    The columns are the upper digit plus the flags, and the lower digit.
    """
    return xp.stack([labels // BASE + int(flags) * FLAGS_UNIT, labels % BASE], 1)


def decode_labels(digits: Array, ranks: int) -> tuple[Array, Array]:
    """Unpacks the digits (G, 2) int64 of all ranks, in rank order, into labels (G,) and RankFlags (R,), both int64."""
    upper, lower = digits.T
    labels = upper % FLAGS_UNIT * BASE + lower
    return labels, upper[:: len(upper) // ranks] // FLAGS_UNIT
