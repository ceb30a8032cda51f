"""Which class centers take part in a step: all positives, then uniform negatives.

Shapes: G global batch, L classes of this rank, S sampled classes of this rank, P positives that live here.
"""

from __future__ import annotations

import numpy as np


def local_positives(unique_labels: np.ndarray, class_start: int, num_local: int) -> np.ndarray:
    """Local indices of the labels whose centers live on this rank.

    Args:
        unique_labels: (U,) integers, sorted and unique, class ids of the whole data set.
        class_start: first class of this rank.
        num_local: L.

    Returns:
        (P,) int64, sorted, each in 0 .. L-1.
    """
    low, high = np.searchsorted(unique_labels, [class_start, class_start + num_local])
    return unique_labels[low:high].astype(np.int64) - class_start


def draw_negatives(positive: np.ndarray, num_local: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draws ``count`` of the L - P classes that are not positive, uniformly, without replacement.

    The draw is made among the numbers 0 .. L-P-1 and each is then moved past the positives at or
    below it: no set difference, no loop over classes.

    Args:
        positive: (P,) int64, sorted, unique local indices.
        num_local: L.
        count: at most L - P.
        rng: the source of randomness.

    Returns:
        (count,) int64, sorted.
    """
    gaps = np.sort(rng.choice(num_local - len(positive), size=count, replace=False, shuffle=False)).astype(np.int64)
    # positive[i] - i negatives lie below the i-th positive: a gap number at or above that skips it.
    return gaps + np.searchsorted(positive - np.arange(len(positive)), gaps, side="right")


def sample_classes(positive: np.ndarray, num_local: int, num_sample: int, rng: np.random.Generator) -> np.ndarray:
    """Local indices of the centers of one step (paper 2203.15565, section 3.2, PPRN sampling).

    All positives are in it. More positives than ``num_sample``: the step grows to hold them.
    With ``num_sample`` = L every center is in it and nothing is drawn.

    Returns:
        (S,) int64, sorted, unique.
    """
    if num_sample >= num_local:
        return np.arange(num_local, dtype=np.int64)
    missing = num_sample - len(positive)
    if missing <= 0:
        return positive
    index = np.concatenate([positive, draw_negatives(positive, num_local, missing, rng)])
    index.sort()
    return index


def label_columns(labels: np.ndarray, local_index: np.ndarray, class_start: int) -> np.ndarray:
    """Column of each label among the sampled centers, -1 where its center is not there.

    Args:
        labels: (G,) integers, class ids of the whole data set.
        local_index: (S,) sorted local indices, as :func:`sample_classes` returns them.
        class_start: first class of this rank.

    Returns:
        (G,) int64, each in -1 .. S-1.
    """
    local = labels.astype(np.int64) - class_start
    column = np.searchsorted(local_index, local)
    inside = column < len(local_index)
    found = np.zeros(len(local), dtype=bool)
    found[inside] = local_index[column[inside]] == local[inside]
    return np.where(found, column, -1)


class WeightIndexSampler:
    """Draws the centers of a step for one rank.

    Args:
        num_sample: S, the number of centers a step takes unless more are positive.
        num_local: L.
        rank: this rank; it enters the seed, so ranks draw independently.
        class_start: first class of this rank; ``rank * num_local`` where None, which is right when R divides C.
        seed: with the rank, the whole source of randomness.
    """

    def __init__(self, num_sample: int, num_local: int, rank: int, class_start: int | None = None, seed: int = 0):
        self.num_sample = num_sample
        self.num_local = num_local
        self.class_start = rank * num_local if class_start is None else class_start
        # The constant keeps this stream apart from others that are seeded by (seed, rank).
        self.rng = np.random.default_rng([seed, rank, 0x5A])

    def __call__(self, global_label: np.ndarray) -> tuple:
        """Samples for the labels of one global batch.

        Args:
            global_label: (G,) integers.

        Returns:
            (local index (S,) int64 sorted, unique labels of the global batch (U,) sorted).
        """
        unique = np.unique(global_label)
        positive = local_positives(unique, self.class_start, self.num_local)
        return sample_classes(positive, self.num_local, self.num_sample, self.rng), unique
