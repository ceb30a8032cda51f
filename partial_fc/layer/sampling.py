"""The sample of class centers of a step: all positives, then uniform negatives.

Shapes: G global batch, L classes of this rank, S sampled classes of this rank, P positive classes of this rank.
"""

from __future__ import annotations

import math

import numpy as np


def local_positives(unique_labels: np.ndarray, class_start: int, num_local: int) -> np.ndarray:
    """Returns the local indices of the labels whose centers this rank holds.

    Args:
        unique_labels: (U,) integers, sorted and unique, global class ids.
        class_start: first class of this rank.
        num_local: L.

    Returns:
        (P,) int64, sorted, each in 0 .. L-1.
    """
    low, high = np.searchsorted(unique_labels, [class_start, class_start + num_local])
    return unique_labels[low:high].astype(np.int64) - class_start


def _sorted_draws(pool: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draws ``size`` numbers of 0 .. pool-1 with replacement: (size,) int64, sorted, in linear time.

    The first n of n + 1 cumulative sums of exponential variables, divided by the last, are n sorted uniform variables
    (Devroye: Non-Uniform Random Variate Generation, 1986, chapter V.3), here with the resolution of float64.
    """
    sums = rng.standard_exponential(size + 1)
    np.cumsum(sums, out=sums)
    sums *= pool / sums[-1]
    # Rounding can produce ``pool`` itself.
    return np.minimum(sums[:-1], pool - 1, out=sums[:-1]).astype(np.int64)


def _draw_subset(pool: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draws a uniform subset of ``count`` of the numbers 0 .. pool-1, at most half of them: (count,) int64, sorted.

    Draws with replacement are symmetric in the numbers, so all sets of distinct numbers of the same size are equally
    likely. This stays so if too small sets are rejected, which depends only on their size, and if a uniform choice
    is removed from too large sets.
    """
    if count == 0:
        return np.empty(0, dtype=np.int64)
    # Draws for ``count`` distinct numbers on average, plus five standard deviations of at most 0.8 sqrt(count) each.
    size = int(-pool * math.log1p(-count / pool) + 4 * math.sqrt(count)) + 1
    while True:
        drawn = _sorted_draws(pool, size, rng)
        drawn = drawn[np.append(True, drawn[1:] != drawn[:-1])]
        if len(drawn) >= count:
            return np.delete(drawn, rng.choice(len(drawn), len(drawn) - count, replace=False, shuffle=False))


def draw_negatives(positive: np.ndarray, num_local: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draws ``count`` of the L - P classes that are not positive, uniformly, without replacement.

    It draws from 0 .. L-P-1, then increments each number by the number of positives at or below it. If count is more
    than half of the classes, it draws the classes to leave out. Time and memory are O(P + count), independent of L.

    Args:
        positive: (P,) int64, sorted, unique local indices.
        num_local: L.
        count: at most L - P.
        rng: random generator.

    Returns:
        (count,) int64, sorted.
    """
    pool = num_local - len(positive)
    if 2 * count > pool:
        chosen = np.ones(num_local, dtype=bool)
        chosen[positive] = False
        chosen[draw_negatives(positive, num_local, pool - count, rng)] = False
        return np.flatnonzero(chosen)
    drawn = _draw_subset(pool, count, rng)
    # There are positive[i] - i negatives below the i-th positive, so larger numbers skip it.
    skips = np.searchsorted(drawn, positive - np.arange(len(positive)))
    return drawn + np.repeat(np.arange(len(positive) + 1), np.diff(skips, prepend=0, append=count))


def sample_classes(positive: np.ndarray, num_local: int, num_sample: int, rng: np.random.Generator) -> np.ndarray:
    """Samples the local indices of the centers of a step (arXiv 2203.15565, section 3.2, PPRN sampling).

    The sample contains all positives, even if they are more than ``num_sample``; negatives fill it up.
    With ``num_sample`` >= L it contains every center, and nothing is drawn.

    Args:
        positive: (P,) int64, sorted, unique local indices.
        num_local: L.
        num_sample: number of centers, unless more are positive.
        rng: random generator.

    Returns:
        (S,) int64, sorted, unique.
    """
    if num_sample >= num_local:
        return np.arange(num_local, dtype=np.int64)
    missing = num_sample - len(positive)
    if missing <= 0:
        return positive
    negative = draw_negatives(positive, num_local, missing, rng)
    return np.insert(negative, np.searchsorted(negative, positive), positive)


def label_columns(labels: np.ndarray, local_index: np.ndarray, class_start: int) -> np.ndarray:
    """Returns the column of each label's center among the sampled centers, -1 if it is not among them.

    Args:
        labels: (G,) integers, global class ids.
        local_index: (S,) sorted local indices, from :func:`sample_classes`.
        class_start: first class of this rank.

    Returns:
        (G,) int64, each in -1 .. S-1.
    """
    local = labels.astype(np.int64) - class_start
    column = np.searchsorted(local_index, local)
    inside = column < len(local_index)
    sampled = np.zeros(len(local), dtype=bool)
    sampled[inside] = local_index[column[inside]] == local[inside]
    return np.where(sampled, column, -1)


class WeightIndexSampler:
    """Samples the centers of a step for one rank.

    Args:
        num_sample: S, number of centers of a step, unless more are positive.
        num_local: L.
        rank: this rank; part of the seed, so that ranks draw independently.
        class_start: first class of this rank; None is ``rank * num_local``, which is correct if R divides C.
        seed: together with the rank it determines all draws.
    """

    def __init__(self, num_sample: int, num_local: int, rank: int, class_start: int | None = None, seed: int = 0):
        self.num_sample = num_sample
        self.num_local = num_local
        self.class_start = rank * num_local if class_start is None else class_start
        # The constant separates this stream from others seeded with (seed, rank).
        self._key = [seed, rank, 0x5A]
        self.rng = np.random.default_rng(self._key)

    def state(self) -> dict:
        """Returns the state of the random generator as nested dicts of integers and strings."""
        return dict(self.rng.bit_generator.state)

    def restore(self, state: dict) -> None:
        """Sets the state of the random generator to one that :meth:`state` returned.

        Raises:
            ValueError: the state is not valid.
        """
        try:
            self.rng.bit_generator.state = state
        except (TypeError, KeyError, ValueError, OverflowError) as error:
            raise ValueError(f"not a valid state of the sampler of negatives: {error}") from None

    def restart(self, num_update: int) -> None:
        """Starts a new stream for the updates after ``num_update``, for a resume without a saved state."""
        self.rng = np.random.default_rng([*self._key, num_update])

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
