"""Ten-fold face verification as defined by LFW and insightface.

Embeddings are normalized to length 1. A pair is judged the same person if its squared distance is below a threshold.
The accuracy is the mean over ten folds; each uses the best threshold of the other nine. Folds are contiguous and not
shuffled, because the published lists are ordered so that no identity is in two folds. The TAR is counted over all pairs
(roc.py); insightface's TAR, which interpolates thresholds, is computed as well.

Shapes: P pairs, E embedding, F folds, T thresholds; rows 2p and 2p + 1 form pair p.
"""

import math
from typing import NamedTuple

import numpy as np

from partial_fc.utils.distances import squared_distances

from .roc import Roc, max_accepted

# insightface's grids: squared distances of unit vectors lie in [0, 4].
THRESHOLDS = np.arange(0, 4, 0.01)
FINE_THRESHOLDS = np.arange(0, 4, 0.001)  # for the interpolated TAR
FOLDS = 10
STUDENT = 2.262  # 97.5 % quantile of Student's t, for FOLDS values


class Verification(NamedTuple):
    """Result of a verification.

    Attributes:
        accuracy: Mean accuracy over the folds.
        std: Standard deviation of the accuracy over the folds.
        threshold: Mean threshold over the folds, a squared distance.
        tar_at_far: Largest share of same pairs accepted at a threshold with a false accept rate of at most ``far``.
        far: Requested false accept rate (FAR).
        measured_far: FAR at this threshold, the share of different pairs accepted; at most ``far``.
        tar_interpolated: insightface's TAR, see `interpolated_tar`. Its FAR may exceed ``far``.
    """

    accuracy: float
    std: float
    threshold: float
    tar_at_far: float
    far: float
    measured_far: float
    tar_interpolated: float


class VerificationPoint(NamedTuple):
    """Result of a verification during training.

    Attributes:
        num_update: Number of updates before the verification.
        accuracy, std, threshold, tar_at_far, far, measured_far, tar_interpolated: See `Verification`. Points of earlier
            versions lack the last two, and ``tar_at_far`` is insightface's TAR.
        xnorm: Mean length of the embeddings before normalization.
        dimensions: See `effective_dimensions`.
        agreement: Mean cosine between the embeddings of the same images in evaluation and in training mode.
        seconds: Duration.
    """

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
    measured_far: float | None = None
    tar_interpolated: float | None = None


def verify(embeddings: np.ndarray, issame: np.ndarray, folds: int = FOLDS, far: float = 1e-3) -> Verification:
    """Verifies embeddings.

    Args:
        embeddings: (2P, E). The caller adds the embeddings of mirror images, if any.
        issame: (P,) bool.
        folds: F.
        far: Requested false accept rate.

    Raises:
        ValueError: The sizes do not match, there are fewer pairs than folds, same or different pairs are missing, or
            values are not finite.
    """
    if len(embeddings) != 2 * len(issame):
        raise ValueError(f"{len(issame)} pairs need {2 * len(issame)} embeddings, got {len(embeddings)}")
    return verify_distances(squared_distances(embeddings[0::2], embeddings[1::2]), issame, folds, far)


def verify_distances(
    distance: np.ndarray, issame: np.ndarray, folds: int = FOLDS, far: float = 1e-3, name: str = "this set"
) -> Verification:
    """Like `verify`, for squared distances (P,); errors name the set."""
    issame = np.asarray(issame, dtype=bool)
    check_kinds(issame, name, folds)
    finite = np.isfinite(distance)
    if not finite.all():
        raise ValueError(
            f"embeddings of {np.sum(~finite)} pairs are not finite, the first is pair {finite.argmin()}: has training "
            "diverged?"
        )
    accuracies, thresholds = accuracy_by_fold(distance, issame, folds)
    tar, measured_far = Roc(-distance, issame).at_most(far)
    return Verification(
        float(accuracies.mean()),
        float(accuracies.std()),
        float(thresholds.mean()),
        tar,
        far,
        measured_far,
        interpolated_tar(distance, issame, folds, far),
    )


def accuracy_margin(std: float) -> float:
    """Returns half of the accuracy's 95 % interval from its standard deviation over FOLDS folds, by Student's t."""
    return STUDENT * std / math.sqrt(FOLDS - 1)


def tar_differs(tar_at_far: float, tar_interpolated: float | None) -> bool:
    """Returns whether insightface's TAR was measured and differs in the digits shown."""
    return tar_interpolated is not None and f"{tar_interpolated:.5f}" != f"{tar_at_far:.5f}"


def describe_tar(figures: Verification | VerificationPoint, impostor_pairs: int) -> str:
    """Returns the TAR as text, with the FAR measured on this number of impostor pairs."""
    notes = [f"measured FAR {figures.measured_far:.5f}"]
    if tar_differs(figures.tar_at_far, figures.tar_interpolated):
        notes.append(f"insightface's TAR {figures.tar_interpolated:.5f}")
    if few := too_few(impostor_pairs, figures.far):
        notes.append(few)
    return f"TAR@FAR={figures.far:g}: {figures.tar_at_far:.5f} ({', '.join(notes)})"


def too_few(impostor_pairs: int, far: float) -> str:
    """Returns a warning if the number of impostor pairs is too small to measure a FAR, else an empty text."""
    if max_accepted(far, impostor_pairs):
        return ""
    return f"too few impostor pairs for FAR {far:g}: {impostor_pairs:,} instead of at least {math.ceil(1 / far):,}"


def check_kinds(issame: np.ndarray, name: str, folds: int = FOLDS) -> None:
    """Checks that pairs (P,) bool can be verified.

    Raises:
        ValueError: There are too few pairs, or same or different pairs are missing. The message names the set.
    """
    if not 2 <= folds <= len(issame):
        raise ValueError(
            f"{name}: {len(issame)} pairs cannot be divided into {folds} folds: give {max(folds, 2)} pairs or more"
        )
    if issame.all() or not issame.any():
        raise ValueError(f"{name}: verification needs pairs of the same person and pairs of different ones")


def effective_dimensions(distance: np.ndarray, issame: np.ndarray) -> float:
    """Returns the effective number of dimensions spanned by the embeddings of different people.

    This is 1 / mean cos^2 over the different pairs: E for uniformly distributed directions in E dimensions, 1 if all
    embeddings are on one line through the origin. ``distance``: (P,) squared; ``issame``: (P,) bool.
    """
    cosine = 1 - distance[~np.asarray(issame, dtype=bool)] / 2
    return float(1 / max(np.mean(np.square(cosine)), np.finfo(np.float64).tiny))


def count_by_fold(distance: np.ndarray, issame: np.ndarray, folds: int, thresholds: np.ndarray) -> list[np.ndarray]:
    """Counts the pairs below each threshold.

    Returns:
        Same and different pairs below each threshold, each (F, T); all same and different pairs, each (F, 1).
    """
    parts = np.array_split(np.arange(len(distance)), folds)
    both = [[distance[part][issame[part] == kind] for part in parts] for kind in (True, False)]
    # One sort per fold is faster than one pass per threshold.
    counts = [np.stack([np.searchsorted(np.sort(d), thresholds, side="left") for d in kind]) for kind in both]
    return [*counts, *(np.array([[len(d)] for d in kind]) for kind in both)]


def accuracy_by_fold(distance: np.ndarray, issame: np.ndarray, folds: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the accuracy (F,) of each fold and its threshold (F,), which is the best for the other folds."""
    same, different, same_pairs, different_pairs = count_by_fold(distance, issame, folds, THRESHOLDS)
    correct = same + different_pairs - different
    best = (correct.sum(axis=0) - correct).argmax(axis=1)  # the lowest of equally good thresholds, as in insightface
    sizes = (same_pairs + different_pairs)[:, 0]
    return correct[np.arange(folds), best] / sizes, THRESHOLDS[best]


def interpolated_tar(distance: np.ndarray, issame: np.ndarray, folds: int, far: float) -> float:
    """Returns the share of same pairs accepted, averaged over the folds with same pairs, as in insightface.

    The threshold of a fold is where the FAR of the other folds reaches ``far``, interpolated linearly between two
    thresholds of the fine grid; 0 if it never does.
    """
    _, different, _, pairs = count_by_fold(distance, issame, folds, FINE_THRESHOLDS)
    rates = (different.sum(axis=0) - different) / np.maximum(pairs.sum() - pairs, 1)
    shares = []
    for part, rate in zip(np.array_split(np.arange(len(distance)), folds), rates):
        same = distance[part][issame[part]]
        if len(same):
            # Equals interp1d of the original, which fails on equal rates in current SciPy. Reversed, so that the lowest
            # threshold of equal rates counts: np.interp takes the last of equal x values.
            shares.append(np.mean(same < np.interp(-far, -rate[::-1], FINE_THRESHOLDS[::-1], left=0.0)))
    return float(np.mean(shares))
