"""ROC of a set of pairs, and the pairs that are hardest to verify.

A pair is judged the same person if its distance is below the threshold.

Shapes: P pairs, T steps of the curve.
"""

from __future__ import annotations

import numpy as np


def roc_curve(distance: np.ndarray, issame: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Computes the ROC, with one step per distinct distance.

    Args:
        distance: (P,) finite distances.
        issame: (P,) bool, with pairs of both kinds.

    Returns:
        FAR (T,) and TAR (T,) float64, ascending from (0, 0) to (1, 1). The TAR at FAR f is that of the last step whose
        FAR is at most f.
    """
    order = np.argsort(distance, kind="stable")
    ascending, same = distance[order], issame[order]
    # No threshold separates equal distances: only the last of them ends a step.
    ends = np.flatnonzero(np.append(ascending[1:] > ascending[:-1], True))
    far, tar = (np.append(0.0, np.cumsum(kind)[ends] / kind.sum()) for kind in (~same, same))
    return far, tar


def hardest_pairs(
    distance: np.ndarray, issame: np.ndarray, threshold: float, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the worst pairs of each kind: false rejects and false accepts, then the correct pairs nearest to them.

    Args:
        distance: (P,) finite distances.
        issame: (P,) bool.
        threshold: of the distance.
        count: maximum number of pairs of each kind.

    Returns:
        Indices of same pairs and of different pairs, int64, worst first; of equally wrong ones the lower index first.
    """
    wrong_by = np.where(issame, distance - threshold, threshold - distance)
    rejects, accepts = (
        kind[np.argsort(-wrong_by[kind], kind="stable")][:count]
        for kind in (np.flatnonzero(issame), np.flatnonzero(~issame))
    )
    return rejects, accepts
