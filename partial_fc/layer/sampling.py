"""Which class centers take part in a step: all positives, then uniform negatives.

Shapes: G global batch, L classes of this rank, S sampled classes of this rank, P positives that live here.
"""

from __future__ import annotations

import math

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


def _sorted_draws(pool: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """``size`` numbers in 0 .. pool-1, drawn with replacement: (size,) int64, sorted without a sort.

    Of n + 1 running sums of exponential variables the first n, divided by the last, are n uniform numbers in order
    (Devroye: Non-Uniform Random Variate Generation, 1986, chapter V.3), here to the resolution of float64.
    """
    place = rng.standard_exponential(size + 1)
    np.cumsum(place, out=place)
    place *= pool / place[-1]
    # Rounding can carry a number up to ``pool`` itself.
    return np.minimum(place[:-1], pool - 1, out=place[:-1]).astype(np.int64)


def _draw_subset(pool: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """``count`` numbers of 0 .. pool-1, at most half of them: (count,) int64, sorted, every subset as likely.

    Draws with replacement treat all numbers alike, so given how many different ones came, every set of that many is
    as likely as any other. To draw again where they were too few looks only at how many they were, and to leave out
    a uniform choice of them where they were too many treats all alike again.
    """
    if count == 0:
        return np.empty(0, dtype=np.int64)
    # The draws that give ``count`` different numbers on average and five standard deviations, 0.8 sqrt(count) at most.
    size = int(-pool * math.log1p(-count / pool) + 4 * math.sqrt(count)) + 1
    while True:
        drawn = _sorted_draws(pool, size, rng)
        drawn = drawn[np.append(True, drawn[1:] != drawn[:-1])]
        if len(drawn) >= count:
            return np.delete(drawn, rng.choice(len(drawn), len(drawn) - count, replace=False, shuffle=False))


def draw_negatives(positive: np.ndarray, num_local: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draws ``count`` of the L - P classes that are not positive, uniformly, without replacement.

    The draw is made among the numbers 0 .. L-P-1 and each is then moved past the positives at or below it. Of more
    than half the classes those left out are drawn. Time and memory are in proportion to P + count, whatever L is.

    Args:
        positive: (P,) int64, sorted, unique local indices.
        num_local: L.
        count: at most L - P.
        rng: the source of randomness.

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
    # positive[i] - i negatives lie below the i-th positive: a number at or above that skips it.
    skips = np.searchsorted(drawn, positive - np.arange(len(positive)))
    return drawn + np.repeat(np.arange(len(positive) + 1), np.diff(skips, prepend=0, append=count))


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
    negative = draw_negatives(positive, num_local, missing, rng)
    return np.insert(negative, np.searchsorted(negative, positive), positive)


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
        self._key = [seed, rank, 0x5A]
        self.rng = np.random.default_rng(self._key)

    def state(self) -> dict:
        """Where the draw stands, in integers and text."""
        return dict(self.rng.bit_generator.state)

    def restore(self, state: dict) -> None:
        """Goes on where ``state`` was taken.

        Raises:
            ValueError: it is no such state.
        """
        try:
            self.rng.bit_generator.state = state
        except (TypeError, KeyError, ValueError, OverflowError) as error:
            raise ValueError(f"that is no state of a draw of negatives: {error}") from None

    def restart(self, num_update: int) -> None:
        """Begins a stream of its own for the updates after ``num_update``, where none can be gone on with."""
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
