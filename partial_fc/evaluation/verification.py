"""Face verification as LFW and insightface define it: same person or not, ten folds, one threshold.

Embeddings are normalised to length 1 and a pair is "same" if its squared distance is below a threshold. The best
threshold of nine folds is applied to the tenth; the accuracy is the mean over the ten. Folds are contiguous and not
shuffled, because the published lists are ordered so that no identity is in two of them.

Shapes: P pairs, E embedding, F folds, T thresholds; rows 2p and 2p + 1 make pair p.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partial_fc.inference.distances import squared_distances

# insightface's grids: squared distances of unit vectors lie in [0, 4].
THRESHOLDS = np.arange(0, 4, 0.01)
FINE_THRESHOLDS = np.arange(0, 4, 0.001)  # for the TAR
FOLDS = 10


class Verification(NamedTuple):
    """`accuracy` and `std` over the folds, `threshold` their mean; `tar_at_far`: share of the same pairs accepted, mean
    over the folds, each at the threshold where a share `far` of the different pairs of the others is."""

    accuracy: float
    std: float
    threshold: float
    tar_at_far: float
    far: float


class VerificationPoint(NamedTuple):
    """What a verification in a training has given: a Verification, the update it was made after, the mean length of
    the embeddings before they are normalised, their `effective_dimensions`, the mean cosine between the embeddings of
    the same images in evaluation and in training mode, and what it cost in seconds."""

    num_update: int
    accuracy: float
    std: float
    threshold: float
    tar_at_far: float
    far: float
    xnorm: float
    dimensions: float
    agreement: float
    seconds: float


def verify(embeddings: np.ndarray, issame: np.ndarray, folds: int = FOLDS, far: float = 1e-3) -> Verification:
    """Verification of embeddings (2P, E) against issame (P,) bool. Flip-summed embeddings are the caller's.

    Raises ValueError for sizes that do not fit, fewer pairs than folds, pairs of one kind only, and numbers that are
    not finite (an accuracy computed with those would look like a result).
    """
    if len(embeddings) != 2 * len(issame):
        raise ValueError(f"{len(issame)} pairs need {2 * len(issame)} embeddings, got {len(embeddings)}")
    return verify_distances(squared_distances(embeddings), issame, folds, far)


def verify_distances(distance: np.ndarray, issame: np.ndarray, folds: int = FOLDS, far: float = 1e-3) -> Verification:
    """The same of squared distances (P,); raises what verify does."""
    issame = np.asarray(issame, dtype=bool)
    check_kinds(issame, "this set", folds)
    check_finite(distance)
    accuracies, thresholds = accuracy_by_fold(distance, issame, folds)
    return Verification(
        float(accuracies.mean()),
        float(accuracies.std()),
        float(thresholds.mean()),
        tar_at_far(distance, issame, folds, far),
        far,
    )


def check_kinds(issame: np.ndarray, name: str, folds: int = FOLDS) -> None:
    """Raise ValueError, naming the set, for pairs (P,) bool on which an accuracy would mean nothing."""
    if not 2 <= folds <= len(issame):
        raise ValueError(
            f"{name}: {len(issame)} pairs cannot be divided into {folds} folds: give more pairs, or 2 folds at least"
        )
    if issame.all() or not issame.any():
        raise ValueError(f"{name}: verification needs pairs of the same person and pairs of different ones")


def check_finite(distance: np.ndarray) -> None:
    """Raise ValueError for distances (P,) of which some are no numbers."""
    finite = np.isfinite(distance)
    if not finite.all():
        raise ValueError(
            f"an embedding of pair {finite.argmin()} is not finite, in {np.sum(~finite)} pairs in all: has training "
            "diverged?"
        )


def effective_dimensions(distance: np.ndarray, issame: np.ndarray) -> float:
    """How many dimensions the embeddings of different people fill, by squared distances (P,) and issame (P,).

    1 / mean cos^2 over the pairs of different people: E where they point evenly into all directions of E dimensions, 1
    where all lie on one line, whether they point the same way along it or opposite ways.
    """
    cosine = 1 - distance[~np.asarray(issame, dtype=bool)] / 2
    return float(1 / max(np.mean(np.square(cosine)), np.finfo(np.float64).tiny))


class FoldCounts(NamedTuple):
    """Pairs accepted below each threshold, (F, T), and how many there are, (F, 1); of the same person and of others."""

    same: np.ndarray
    different: np.ndarray
    same_pairs: np.ndarray
    different_pairs: np.ndarray


def count_by_fold(distance: np.ndarray, issame: np.ndarray, folds: int, thresholds: np.ndarray) -> FoldCounts:
    """Every count from one sorting of each fold, where a pass over all pairs for each threshold would do, too."""
    parts = np.array_split(np.arange(len(distance)), folds)
    both = [[distance[part][issame[part] == kind] for part in parts] for kind in (True, False)]
    counts = [np.stack([np.searchsorted(np.sort(d), thresholds, side="left") for d in kind]) for kind in both]
    return FoldCounts(*counts, *(np.array([[len(d)] for d in kind]) for kind in both))


def accuracy_by_fold(distance: np.ndarray, issame: np.ndarray, folds: int) -> tuple[np.ndarray, np.ndarray]:
    """(F,) accuracies, and the thresholds (F,) at which they are taken: the best of the other folds."""
    count = count_by_fold(distance, issame, folds, THRESHOLDS)
    correct = count.same + count.different_pairs - count.different
    best = (correct.sum(axis=0) - correct).argmax(axis=1)  # the first of equals, as insightface takes it
    sizes = (count.same_pairs + count.different_pairs)[:, 0]
    return correct[np.arange(folds), best] / sizes, THRESHOLDS[best]


def tar_at_far(distance: np.ndarray, issame: np.ndarray, folds: int, far: float) -> float:
    """Share of the same pairs of a fold accepted, mean over the folds that have some, as insightface takes it.

    The threshold of a fold is where the FAR of the others reaches `far`, on the line between two thresholds of the
    fine grid; 0 where it never does.
    """
    count = count_by_fold(distance, issame, folds, FINE_THRESHOLDS)
    others = np.maximum(count.different_pairs.sum() - count.different_pairs, 1)
    rates = (count.different.sum(axis=0) - count.different) / others
    parts = np.array_split(np.arange(len(distance)), folds)
    shares = []
    for part, rate in zip(parts, rates):
        same = distance[part][issame[part]]
        if len(same):
            shares.append(np.mean(same < threshold_at(rate, far)))
    return float(np.mean(shares))


def threshold_at(rates: np.ndarray, far: float) -> float:
    """Where rates (T,), which rise from 0, reach `far` > 0.

    Of thresholds with the same rate, those next to the rise count. (The original's `interp1d` fails on such points in
    today's scipy; where the rates are all different, this is what it gives.)
    """
    above = int(np.searchsorted(rates, far, side="left"))
    if above == len(rates):
        return 0.0
    low, high = FINE_THRESHOLDS[above - 1], FINE_THRESHOLDS[above]
    return float(low + (high - low) * (far - rates[above - 1]) / (rates[above] - rates[above - 1]))
