"""Face verification as LFW and insightface define it: same person or not, ten folds, one threshold.

Embeddings are normalised to length 1 and a pair is "same" if its squared distance is below a threshold. The best
threshold of nine folds is applied to the tenth; the accuracy is the mean over the ten. Folds are contiguous and not
shuffled, because the published lists are ordered so that no identity is in two of them.

Shapes: P pairs, E embedding; rows 2p and 2p + 1 make pair p.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# insightface's grid: squared distances of unit vectors lie in [0, 4].
THRESHOLDS = np.arange(0, 4, 0.01)


class Verification(NamedTuple):
    """`accuracy` and `std` over the folds, `threshold` their mean; `tar_at_far`: share of same pairs accepted where at
    most `far` of the different pairs are."""

    accuracy: float
    std: float
    threshold: float
    tar_at_far: float
    far: float


def verify(embeddings: np.ndarray, issame: np.ndarray, folds: int = 10, far: float = 1e-3) -> Verification:
    """Verification of embeddings (2P, E) against issame (P,) bool. Flip-summed embeddings are the caller's.

    Raises ValueError for sizes that do not fit, fewer pairs than folds, pairs of one kind only, and numbers that are
    not finite (an accuracy computed with those would look like a result).
    """
    issame = np.asarray(issame, dtype=bool)
    check_pairs(embeddings, issame, folds)
    distance = squared_distances(embeddings)
    correct, sizes = correct_by_fold(distance, issame, folds)
    others = correct.sum(axis=0) - correct
    best = others.argmax(axis=1)  # the first of equals, as insightface takes it
    accuracies = correct[np.arange(folds), best] / sizes
    return Verification(
        float(accuracies.mean()),
        float(accuracies.std()),
        float(THRESHOLDS[best].mean()),
        tar_at_far(distance, issame, far),
        far,
    )


def check_pairs(embeddings: np.ndarray, issame: np.ndarray, folds: int) -> None:
    """Raise ValueError for input on which an accuracy would mean nothing."""
    if len(embeddings) != 2 * len(issame):
        raise ValueError(f"{len(issame)} pairs need {2 * len(issame)} embeddings, got {len(embeddings)}")
    if not 2 <= folds <= len(issame):
        raise ValueError(
            f"{len(issame)} pairs cannot be divided into {folds} folds: give more pairs, or 2 folds at least"
        )
    if issame.all() or not issame.any():
        raise ValueError("verification needs pairs of the same person and pairs of different ones")
    finite = np.isfinite(embeddings).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"the embedding of image {finite.argmin()} is not finite, {np.sum(~finite)} in all: has training diverged?"
        )


def squared_distances(embeddings: np.ndarray) -> np.ndarray:
    """(P,) float64 squared distances of the normalised pairs; an embedding of zeros stays zero, at distance 1."""
    left, right = embeddings[0::2], embeddings[1::2]

    def inner(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.einsum("pe,pe->p", a, b, dtype=np.float64)

    lengths = np.sqrt(inner(left, left)), np.sqrt(inner(right, right))
    squares = [(length > 0).astype(np.float64) for length in lengths]
    cosine = inner(left, right) / np.where(lengths[0] * lengths[1] > 0, lengths[0] * lengths[1], 1.0)
    return np.clip(squares[0] + squares[1] - 2 * cosine, 0, 4)


def correct_by_fold(distance: np.ndarray, issame: np.ndarray, folds: int) -> tuple[np.ndarray, np.ndarray]:
    """Correct answers (folds, thresholds) int64 for every threshold, and the folds' sizes (folds,).

    A pair is accepted by the thresholds above its distance: one count a pair and a cumulative sum replace a pass over
    all pairs for each of the 400 thresholds.
    """
    first_accepting = np.searchsorted(THRESHOLDS, distance, side="right")
    parts = np.array_split(np.arange(len(distance)), folds)
    sizes = np.array([len(part) for part in parts])
    correct = np.empty((folds, len(THRESHOLDS)), np.int64)
    for fold, part in enumerate(parts):
        same = issame[part]
        gained = np.bincount(first_accepting[part][same], minlength=len(THRESHOLDS) + 1)
        lost = np.bincount(first_accepting[part][~same], minlength=len(THRESHOLDS) + 1)
        correct[fold] = np.sum(~same) + np.cumsum(gained - lost)[:-1]
    return correct, sizes


def tar_at_far(distance: np.ndarray, issame: np.ndarray, far: float) -> float:
    """Share of same pairs below the largest threshold that accepts at most `far` of the different pairs."""
    different = np.sort(distance[~issame])
    allowed = min(int(far * len(different)), len(different) - 1)
    return float(np.mean(distance[issame] < different[allowed]))


def raw_pixel_embeddings(images: np.ndarray) -> np.ndarray:
    """(2P, H*W*3) float32 pixels of images (2P, H, W, 3) uint8, the baseline a network has to beat.

    Without the mean image every cosine would be near 1; taking it away is what makes pixels comparable at all.
    """
    pixels = images.reshape(len(images), -1).astype(np.float32)
    pixels -= pixels.mean(axis=0, dtype=np.float64).astype(np.float32)
    return pixels
