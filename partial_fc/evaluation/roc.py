"""ROC curve of scored pairs: the true accept rate (TAR) at a false accept rate (FAR), counted and never interpolated.

Genuine pairs show the same person, impostor pairs different people. A threshold accepts every pair that reaches it, so
pairs with equal scores are accepted together. "TAR at FAR f" has two definitions:

- `Roc.at_most`: the largest TAR of all thresholds with a FAR of at most f, as defined by NIST and the IJB papers.
- `Roc.nearest`: the largest TAR at the FAR nearest to f, or at the higher of two equally near ones, which is how
  insightface reads the curve of IJB. With the 15.6 million impostor pairs of IJB-C the two differ only at FAR 1e-6,
  where 15 or 16 pairs are accepted. insightface computes the curve with scikit-learn, which drops collinear points;
  here all points are kept.

Shapes: P pairs.
"""

import math
from typing import NamedTuple

import numpy as np

POINTS = 500  # of a curve


class RocPoint(NamedTuple):
    """A point of the curve."""

    tar: float
    far: float  # measured


def max_accepted(share: float, count: int) -> int:
    """Returns the largest integer n with n / count <= share; 0 for a count of 0."""
    accepted = min(math.floor(share * count) + 1, count)  # the product may be rounded up or down
    while accepted and accepted / count > share:
        accepted -= 1
    return accepted


def highest_refused(impostor: np.ndarray, far: float) -> np.floating:
    """Returns the highest score to refuse for a FAR of at most ``far``; -inf if none. ``impostor`` ascends."""
    refused = len(impostor) - max_accepted(far, len(impostor))
    # With a scalar of another type, searchsorted would convert the whole array.
    return impostor[refused - 1] if refused else impostor.dtype.type(-math.inf)


class Roc:
    """Exact ROC curve.

    Args:
        scores: (P,) float.
        issame: (P,) bool, True for genuine pairs; contains both values.

    Attributes:
        genuine: Scores of the genuine pairs, ascending.
        impostor: Scores of the impostor pairs, ascending.
    """

    def __init__(self, scores: np.ndarray, issame: np.ndarray):
        self.genuine, self.impostor = np.sort(scores[issame]), scores[~issame]
        self.impostor.sort()

    def at_most(self, far: float) -> RocPoint:
        """Returns the point with the largest TAR at a FAR of at most ``far``."""
        refused = highest_refused(self.impostor, far)
        tar, measured_far = (
            (len(scores) - int(np.searchsorted(scores, refused, side="right"))) / len(scores)
            for scores in (self.genuine, self.impostor)
        )
        return RocPoint(tar, measured_far)

    def nearest(self, far: float) -> RocPoint:
        """Returns the point whose FAR is nearest to ``far``."""
        count = len(self.impostor)
        value = self.impostor[max(count - 1 - max_accepted(far, count), 0)]
        below = count - int(np.searchsorted(self.impostor, value, side="right"))
        above = count - int(np.searchsorted(self.impostor, value, side="left"))
        return self.at_most((above if abs(above / count - far) <= abs(below / count - far) else below) / count)

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns (FAR, TAR), each (at most POINTS,) float64, ascending, evenly spaced in log FAR up to FAR 1."""
        count = len(self.impostor)
        far = np.unique(np.rint(np.logspace(0, np.log10(count), POINTS)).astype(np.int64)) / count
        return far, np.array([self.at_most(share).tar for share in far.tolist()])
