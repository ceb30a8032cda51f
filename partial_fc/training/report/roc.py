"""ROC of a set of pairs, and the pairs that are hardest to verify.

A pair is judged the same person if its distance is below the threshold.

Shapes: P pairs, T steps of the curve.
"""

from __future__ import annotations

import numpy as np


def roc_curve(distance: np.ndarray, issame: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Computes the ROC, with one step per distinct distance.

    Args:
        distance: (P,) distances.
        issame: (P,) bool.

    Returns:
        FAR (T,) and TAR (T,) float64, ascending from (0, 0) to (1, 1). The TAR at FAR f is that of the last step whose
        FAR is at most f.

    Raises:
        ValueError: The sizes differ, a distance is not finite, or there are pairs of one kind only.
    """
    distance, issame = _checked(distance, issame)
    if issame.all() or not issame.any():
        raise ValueError(f"a ROC needs pairs of both kinds; {issame.sum()} of the {len(issame)} are of the same person")
    order = np.argsort(distance, kind="stable")
    ascending, same = distance[order], issame[order]
    # No threshold separates equal distances: only the last of them ends a step.
    ends = np.flatnonzero(np.append(ascending[1:] > ascending[:-1], True))
    accepted = [np.cumsum(kind)[ends] / kind.sum() for kind in (~same, same)]
    far, tar = (np.concatenate([[0.0], share]) for share in accepted)
    return far, tar


def hardest_pairs(
    distance: np.ndarray, issame: np.ndarray, threshold: float, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the worst pairs of each kind: false rejects and false accepts, then the correct pairs nearest to them.

    Args:
        distance: (P,) distances.
        issame: (P,) bool.
        threshold: Threshold of the distance.
        count: Maximum number of pairs of each kind.

    Returns:
        Indices of same pairs and of different pairs, int64, worst first; of equally wrong ones the lower index first.

    Raises:
        ValueError: The sizes differ, or a distance is not finite.
    """
    distance, issame = _checked(distance, issame)
    wrong_by = np.where(issame, distance - threshold, threshold - distance)
    rejects, accepts = (
        kind[np.argsort(-wrong_by[kind], kind="stable")][:count]
        for kind in (np.flatnonzero(issame), np.flatnonzero(~issame))
    )
    return rejects, accepts


def _checked(distance: np.ndarray, issame: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    distance, issame = np.asarray(distance, np.float64), np.asarray(issame, bool)
    if distance.ndim != 1 or distance.shape != issame.shape:
        raise ValueError(f"distances {distance.shape} and flags {issame.shape} must have the same shape (pairs,)")
    finite = np.isfinite(distance)
    if not finite.all():
        raise ValueError(f"the distance of pair {finite.argmin()} is {distance[finite.argmin()]}, expected finite")
    return distance, issame
