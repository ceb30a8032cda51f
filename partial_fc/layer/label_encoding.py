"""Labels and rank flags as float32, so that they travel in one array with the features.

Shapes: B local batch, R ranks, G = B*R global batch, C classes.
"""

import enum
from types import ModuleType

import numpy as np

from . import Array

# A label is sent as two digits in this base. float32 represents both exactly.
BASE = 2**24
DIGITS = 2
# The upper digit of a label below 2^45 leaves three bits of the 24 free. They hold the flags.
FLAGS_UNIT = 2**21


class RankFlags(enum.IntFlag):
    """What a rank reports to all ranks with the labels of its next step; at most three bits."""

    CHECKPOINT_WRITTEN = 1
    STOP_REQUESTED = 2
    CHECKPOINT_DUE = 4


def check_labels(labels: np.ndarray, num_classes: int) -> None:
    """Raises ValueError if one of the labels (B,) is not in 0..C-1."""
    invalid = labels[(labels < 0) | (labels >= num_classes)]
    if len(invalid):
        raise ValueError(f"label {invalid[0]} is not one of the {num_classes} classes 0..{num_classes - 1}")


def encode_labels(labels: Array, flags: int = 0, xp: ModuleType = np) -> Array:
    """Packs the labels (B,) int64 of this rank's batch and its RankFlags into (B, 2) int64, exact in float32.

    The columns are the upper digit plus flags, and the lower digit: the flags need no collective and no bytes of their
    own.
    """
    return xp.stack([labels // BASE + int(flags) * FLAGS_UNIT, labels % BASE], 1)


def decode_labels(digits: Array, ranks: int) -> tuple[Array, Array]:
    """Unpacks digits (G, 2) int64, the results of encode_labels in rank order: (labels (G,), flags (R,)), both int64.

    Compare the flags bitwise with RankFlags.
    """
    upper, lower = digits.T
    labels = upper % FLAGS_UNIT * BASE + lower
    return labels, upper[:: len(upper) // ranks] // FLAGS_UNIT
