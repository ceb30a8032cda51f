"""Wrong labels, to see what they cost a training.

Shape: N items.
"""

import numpy as np

from .identity import random_stream

NOISE = 103  # stream of random numbers


def flipped(labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Returns labels (N,) of which a share has changed to other labels, drawn uniformly."""
    draws = random_stream(seed, NOISE).random((2, len(labels)))
    classes = int(labels.max()) + 1
    chosen = draws[0].argsort(kind="stable")[: round(share * len(labels))]
    result = labels.copy()
    result[chosen] = (labels[chosen] + 1 + (draws[1, chosen] * (classes - 1)).astype(labels.dtype)) % classes
    return result
