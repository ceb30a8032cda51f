"""Wrong labels, for measuring how they affect training.

Shape: N items.
"""

import numpy as np

from .identity import random_stream

NOISE = 103  # stream of random numbers


def flipped(labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Returns labels (N,) with a share of them replaced by other labels, drawn uniformly."""
    draws = random_stream(seed, NOISE).random((2, len(labels)))
    classes = int(labels.max()) + 1
    wrong = draws[0].argsort(kind="stable")[: round(share * len(labels))]
    result = labels.copy()
    result[wrong] = (labels[wrong] + 1 + (draws[1, wrong] * (classes - 1)).astype(labels.dtype)) % classes
    return result
