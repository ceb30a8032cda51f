"""ROC of scored pairs: the true accept rate (TAR) at a false accept rate (FAR), counted and never interpolated.

Genuine pairs show the same person, impostor pairs different ones. A threshold accepts every pair with this score or a
higher one, so pairs of equal score are accepted together. There are two readings of "TAR at FAR f". ``at_most``: the
largest TAR of all thresholds whose FAR is at most f, the definition of NIST and of the IJB papers. ``nearest``: the TAR
at the point of the curve whose FAR is nearest to f, the higher FAR of two equally near ones, and there the largest TAR:
how insightface reads the curve of IJB. With the 15.6 million impostor pairs of IJB-C the two differ only at FAR 1e-6,
where 15 or 16 of them are accepted. insightface computes the curve with scikit-learn, which drops points on a straight
line between two others; here all points are kept.

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
    """Returns the highest of ascending impostor scores to refuse for a FAR of at most ``far``; -inf to refuse none."""
    refused = len(impostor) - max_accepted(far, len(impostor))
    # A scalar of another type would make searchsorted convert the whole array.
    return impostor[refused - 1] if refused else impostor.dtype.type(-math.inf)


def share_above(scores: np.ndarray, refused: np.floating) -> float:
    """Returns the share of ascending scores that are higher."""
    return (len(scores) - int(np.searchsorted(scores, refused, side="right"))) / len(scores)


class Roc:
    """Exact ROC curve.

    Args:
        scores: (P,) float.
        issame: (P,) bool, True for genuine pairs. There must be pairs of both kinds.

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
        return RocPoint(share_above(self.genuine, refused), share_above(self.impostor, refused))

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
