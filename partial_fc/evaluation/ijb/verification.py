"""1:1 verification: scores of template pairs, and the true accept rate (TAR) at a false accept rate (FAR).

Genuine pairs show the same person, impostor pairs different ones. There are two readings of "TAR at FAR f".
``at_most``: the largest TAR of all thresholds whose FAR is at most f, the definition of NIST and of the IJB papers.
``nearest``: the TAR at the point of the curve whose FAR is nearest to f, the higher FAR of two equally near ones, and
there the largest TAR: how insightface reads the curve. With the 15.6 million impostor pairs of IJB-C the two differ
only at FAR 1e-6, where 15 or 16 of them are accepted. insightface computes the curve with scikit-learn, which drops
points on a straight line between two others; here all points are kept.

A threshold accepts every pair with this score or a higher one, so pairs of equal score are accepted together.

Shapes: P pairs, T templates, E embedding.
"""

from typing import Any

import numpy as np

FARS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
CHUNK = 512  # pairs: their embeddings (1 MB each side) fit into the cache of a core
POINTS = 500  # of a curve


def pair_scores(templates: np.ndarray, left: np.ndarray, right: np.ndarray, bar: Any) -> np.ndarray:
    """Returns (P,) float32: the cosines of the rows ``left`` and ``right`` (P,) of templates (T, E) of length 1.

    ``bar`` is a progress bar, updated by the number of finished pairs.
    """
    scores = np.empty(len(left), np.float32)
    for start in range(0, len(left), CHUNK):
        part = slice(start, start + CHUNK)
        np.einsum("pe,pe->p", templates[left[part]], templates[right[part]], out=scores[part])
        bar.update(len(left[part]))
    return scores


def max_accepted(share: float, count: int) -> int:
    """Returns the largest integer that is at most ``share`` of ``count``; 29 for 0.29 of 100 despite rounding."""
    return int(np.floor(share * count + 1e-9))


class Roc:
    """Exact ROC curve.

    Args:
        scores: (P,) float32.
        issame: (P,) bool, True for genuine pairs. There must be pairs of both kinds.

    Attributes:
        genuine: Scores of the genuine pairs, ascending.
        impostor: Scores of the impostor pairs, ascending.
    """

    def __init__(self, scores: np.ndarray, issame: np.ndarray):
        self.genuine, self.impostor = np.sort(scores[issame]), scores[~issame]
        self.impostor.sort()

    def tar(self, accepted: int) -> float:
        """Returns the largest TAR of the thresholds that accept at most ``accepted`` impostor pairs."""
        if accepted >= len(self.impostor):
            return 1.0
        refused = self.highest_refused(accepted)
        return (len(self.genuine) - int(np.searchsorted(self.genuine, refused, side="right"))) / len(self.genuine)

    def highest_refused(self, accepted: int) -> float:
        """Returns the highest impostor score to refuse, so that at most ``accepted`` pairs, fewer than all, pass."""
        return float(self.impostor[len(self.impostor) - 1 - accepted])

    def at_most(self, far: float) -> float:
        """Returns the TAR at a FAR of at most ``far``."""
        return self.tar(max_accepted(far, len(self.impostor)))

    def nearest(self, far: float) -> float:
        """Returns the TAR at the point of the curve whose FAR is nearest to ``far``."""
        count = len(self.impostor)
        value = self.impostor[max(count - 1 - max_accepted(far, count), 0)]
        below = count - int(np.searchsorted(self.impostor, value, side="right"))
        above = count - int(np.searchsorted(self.impostor, value, side="left"))
        return self.tar(above if abs(above / count - far) <= abs(below / count - far) else below)

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns (FAR, TAR), each (at most POINTS,) float64, ascending, evenly spaced in log FAR up to FAR 1."""
        count = len(self.impostor)
        accepted = np.unique(np.rint(np.logspace(0, np.log10(count), POINTS)).astype(np.int64))
        return accepted / count, np.array([self.tar(number) for number in accepted.tolist()])
