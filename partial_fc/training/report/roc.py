"""Where a threshold on the distance fails: the ROC of a set of pairs, and the pairs that are hardest.

A pair is judged the same person where its distance is below the threshold. Shapes: P pairs, T steps of the curve.
"""

from __future__ import annotations

import numpy as np


def roc_curve(distance: np.ndarray, issame: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(FAR (T,), TAR (T,)) float64 of distances (P,) and flags (P,) bool: a step for each different distance.

    Both ascend, from (0, 0), where nothing is accepted, to (1, 1). The TAR at a FAR f is that of the last step whose
    FAR is at most f. Raises ValueError for sizes that do not fit, numbers that are not finite, and pairs of one kind
    only.
    """
    distance, issame = _checked(distance, issame)
    if issame.all() or not issame.any():
        raise ValueError(f"a ROC needs pairs of both kinds; {issame.sum()} of the {len(issame)} are of the same person")
    order = np.argsort(distance, kind="stable")
    ascending, same = distance[order], issame[order]
    # No threshold lies between equal distances: of those only the last one ends a step.
    ends = np.flatnonzero(np.append(ascending[1:] > ascending[:-1], True))
    accepted = [np.cumsum(kind)[ends] / kind.sum() for kind in (~same, same)]
    far, tar = (np.concatenate([[0.0], share]) for share in accepted)
    return far, tar


def hardest_pairs(
    distance: np.ndarray, issame: np.ndarray, threshold: float, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """(numbers of same pairs, numbers of different pairs), int64, `count` of each at most, worst first.

    False rejects and false accepts, and where there are fewer than `count`, the pairs nearest to being that. Of
    equally wrong ones the lower number comes first. Raises ValueError for sizes that do not fit and numbers that are
    not finite.
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
        raise ValueError(f"distances {distance.shape} and flags {issame.shape} must be one of each for every pair")
    finite = np.isfinite(distance)
    if not finite.all():
        raise ValueError(f"the distance of pair {finite.argmin()} is {distance[finite.argmin()]}, which is no distance")
    return distance, issame
