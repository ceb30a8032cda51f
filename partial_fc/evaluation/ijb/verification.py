"""1:1: scores of pairs of templates, and the share of true pairs accepted at a share of false ones.

Two readings of "TAR at FAR f" are given. `at_most`: the largest TAR of all thresholds whose FAR is f or less, the
definition of NIST and of the IJB papers. `nearest`: the TAR at the point of the curve whose FAR is nearest to f, above
or below, the higher FAR of two as near, and there the largest TAR: how insightface reads it. With IJB-C's 15.6 million
false pairs the two agree but at FAR 1e-6, where 15 or 16 of them are accepted. insightface takes its curve from
scikit-learn, which leaves out points between two others on a straight line; here none is left out.

A threshold accepts every pair whose score is the threshold or more, so equal scores are accepted together or not.

Shapes: P pairs, T templates, E embedding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

FARS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
CHUNK = 512  # pairs: their embeddings (1 MB each side) stay in the processor's cache
POINTS = 500  # of a curve


def pair_scores(templates: np.ndarray, left: np.ndarray, right: np.ndarray, bar: Any) -> np.ndarray:
    """(P,) float32: cosine of the rows `left` and `right` (P,) of `templates` (T, E) float32, which have length 1.

    `bar` is told how many are done.
    """
    scores = np.empty(len(left), np.float32)
    for start in range(0, len(left), CHUNK):
        part = slice(start, start + CHUNK)
        np.einsum("pe,pe->p", templates[left[part]], templates[right[part]], out=scores[part])
        bar.update(len(left[part]))
    return scores


def allowed(share: float, count: int) -> int:
    """The whole number of `count` that is `share` at most; 0.29 of 100 is 29, though 0.29 * 100 is a little less."""
    return int(np.floor(share * count + 1e-9))


class Roc:
    """The exact curve of scores (P,) float32, of which `issame` (P,) bool are true pairs. Both kinds must be there.

    Attributes:
        genuine, impostor: the scores of true and of false pairs, ascending.
    """

    def __init__(self, scores: np.ndarray, issame: np.ndarray):
        self.genuine, self.impostor = np.sort(scores[issame]), scores[~issame]
        self.impostor.sort()

    def tar(self, accepted: int) -> float:
        """The largest TAR of the thresholds that accept at most `accepted` false pairs."""
        if accepted >= len(self.impostor):
            return 1.0
        refused = self.impostor[len(self.impostor) - 1 - accepted]  # it and all that equal it
        return (len(self.genuine) - int(np.searchsorted(self.genuine, refused, side="right"))) / len(self.genuine)

    def at_most(self, far: float) -> float:
        """TAR where `far` of the false pairs are accepted, or fewer."""
        return self.tar(allowed(far, len(self.impostor)))

    def nearest(self, far: float) -> float:
        """TAR at the point of the curve that is nearest to `far`."""
        count = len(self.impostor)
        value = self.impostor[max(count - 1 - allowed(far, count), 0)]
        below = count - int(np.searchsorted(self.impostor, value, side="right"))
        above = count - int(np.searchsorted(self.impostor, value, side="left"))
        return self.tar(above if abs(above / count - far) <= abs(below / count - far) else below)

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """FAR and TAR (at most POINTS,) float64 ascending, evenly over the logarithm of the FAR, which ends at 1."""
        count = len(self.impostor)
        accepted = np.unique(np.rint(np.logspace(0, np.log10(count), POINTS)).astype(np.int64))
        return accepted / count, np.array([self.tar(number) for number in accepted.tolist()])
