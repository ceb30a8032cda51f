"""The sample of class centers of a step: all positives and uniform negatives.

Shapes: G global batch, L classes of this rank, S sampled classes of this rank, P positive classes of this rank.
"""

import math
from concurrent.futures import Future, ThreadPoolExecutor
from types import ModuleType

import numpy as np

from . import Array


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


def draw_classes(num_local: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draws ``count`` of the L classes of a rank, uniformly, without replacement.

    If count is more than half of the classes, it draws the classes to leave out. Time and memory are O(count),
    independent of L. The result is (count,) int64, sorted.
    """
    if 2 * count <= num_local:
        return _draw_subset(num_local, count, rng)
    chosen = np.ones(num_local, dtype=bool)
    chosen[draw_classes(num_local, num_local - count, rng)] = False
    return np.flatnonzero(chosen)


def insert_positives(drawn: Array, order: Array, local: Array, num_local: int, xp: ModuleType = np) -> Array:
    """Puts the positives of a batch that have not been drawn into the places of negatives that have.

    Only this function needs the labels, and the size of its result does not depend on their values. All sets of S - P
    negatives are equally likely: both the drawn classes and the places are symmetric in the negatives. At least as many
    of these places hold negatives as positives are missing: there are at most G positives, and those that are missing
    hold no place.

    Args:
        drawn: (S,) int64 sorted, from `draw_classes`, S at least P; overwritten.
        order: (min(G, S),) int64, different places in ``drawn`` in random order.
        local: (G,) int64, the labels minus the first class of this rank; those outside 0 .. L-1 are of other ranks.
        num_local: L.
        xp: numpy or torch.

    Returns:
        ``drawn``, (S,) int64, all positives and S - P negatives, in any order.
    """
    local = local[xp.argsort(local)]
    last = len(local) - 1
    missing = (local >= 0) & (local < num_local)
    missing[1:] &= local[1:] != local[:-1]
    missing &= local != drawn[xp.clip(xp.searchsorted(drawn, local), 0, len(drawn) - 1)]
    count = xp.cumsum(missing, 0)
    inserted = xp.zeros_like(local)
    inserted[xp.where(missing, count - 1, last)] = local  # the last place is free if any label is not missing
    removed = drawn[order]
    negative = removed != local[xp.clip(xp.searchsorted(local, removed), 0, last)]
    number = xp.cumsum(negative, 0)
    replaced = negative & (number <= count[-1])
    drawn[order] = xp.where(replaced, inserted[xp.clip(number - 1, 0, last)], removed)
    return drawn


def label_columns(labels: Array, local_index: Array, class_start: int, xp: ModuleType = np) -> Array:
    """Returns the column of each label's center among the sampled centers, -1 if it is not among them.

    Args:
        labels: (G,) int64, global class ids.
        local_index: (S,) int64, sorted local indices, S at least 1.
        class_start: first class of this rank.
        xp: numpy or torch.
    """
    local = labels - class_start
    column = xp.clip(xp.searchsorted(local_index, local), 0, len(local_index) - 1)
    return xp.where(local_index[column] == local, column, -1)


# Errors of both trainers.
NOTHING_TO_CORRECT = "sampling_correction weights sampled negatives, but with sample_ratio 0 there are none"
UNKNOWN_PROBABILITIES = "sampling_correction knows no probabilities of a sample() of your own: leave it out"


def log_weights(drawn: Array, num_local: int, xp: ModuleType = np) -> Array:
    """Returns what the logits of a sample get so that their sum of exponentials over the negatives is unbiased.

    A negative that has been drawn is in a sample with the probability p = (S - P) / (L - P), all alike, and counts
    1 / p times (Horvitz and Thompson 1952, A generalization of sampling without replacement from a finite universe):
    its logit gets log(1 / p). Positives of the batch are in every sample, also as negatives of the other rows, and get
    0. A sample of positives alone cannot stand for the negatives that it leaves out.

    Args:
        drawn: (S,) bool, whether a class is no positive of the batch.
        num_local: L.
        xp: numpy or torch.

    Returns:
        (S,) floating point.
    """
    count = xp.clip(drawn.sum(), 1, None)  # S - P
    return xp.where(drawn, xp.log1p((num_local - len(drawn)) / count), 0.0)


class WeightIndexSampler:
    """Samples the centers of a step for one rank (arXiv 2203.15565, section 3.2, PPRN sampling).

    A sample contains all positives, even if they are more than ``num_sample``; negatives fill it up. With
    ``num_sample`` >= L it contains every center, with 0 the positives alone, and nothing is drawn. The classes of a
    step are drawn before its labels are known.

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
        self._rng = np.random.default_rng(self._key)
        self._ahead: Future[np.ndarray] | None = None
        self._state = self._rng.bit_generator.state

    def state(self) -> dict:
        """Returns the state of the random generator before the next step, as nested dicts of integers and strings."""
        return dict(self._rng.bit_generator.state if self._ahead is None else self._state)

    def restore(self, state: dict) -> None:
        """Continues with a state that `state` returned.

        Raises:
            ValueError: the state is not valid.
        """
        if self._ahead is not None:
            self._ahead.result()  # the thread still uses the generator
        try:
            self._rng.bit_generator.state = state
        except (TypeError, KeyError, ValueError, OverflowError) as error:
            raise ValueError(f"not a valid state of the sampler of negatives: {error}") from None
        self._ahead = None

    def restart(self, num_update: int) -> None:
        """Starts a new stream for the updates after ``num_update``, for a resume without a saved state."""
        self._rng = np.random.default_rng([*self._key, num_update])
        self._ahead = None

    def resize(self, num_sample: int) -> None:
        """Samples another number of centers from the next step on, which draws again what `prefetch` has drawn."""
        if num_sample != self.num_sample:
            self.restore(self.state())
            self.num_sample = num_sample

    def begin_draw(self) -> Future[np.ndarray]:
        """Starts to draw the classes of the next step in a thread, unless this is done: (S,) int64, sorted, constant.

        The labels of the step put its positives into the places of some of them. Ten million classes and a sample of
        10 % on eight ranks take 3 ms, in which the host of a GPU can start the backward pass of the backbone: NumPy
        holds the interpreter lock for less than half of them.
        """
        if self._ahead is None:
            self._state = self._rng.bit_generator.state
            thread = ThreadPoolExecutor(1, thread_name_prefix="negatives")
            self._ahead = thread.submit(draw_classes, self.num_local, self.num_sample, self._rng)
            thread.shutdown(wait=False)  # it ends with the draw, so that copies and forks of the sampler have none
        return self._ahead

    def prefetch(self) -> np.ndarray:
        """Returns a copy of the classes of the next step, see `begin_draw`."""
        return self.begin_draw().result().copy()

    def draw(self, batch: int) -> tuple[np.ndarray, np.ndarray]:
        """Draws what a step of G labels needs besides them: ``drawn`` and ``order`` of insert_positives, S below L."""
        drawn = self.prefetch()
        self._ahead = None
        return drawn, self._rng.choice(self.num_sample, min(batch, self.num_sample), replace=False)

    def __getstate__(self) -> dict:
        """What a copy gets: it draws again what this one has drawn ahead."""
        rng = np.random.default_rng(0)
        rng.bit_generator.state = self.state()
        return {**vars(self), "_rng": rng, "_ahead": None}

    def __call__(self, global_label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Samples for labels (G,): (local index (S,) int64 sorted, unique labels of the global batch (U,) sorted)."""
        labels = global_label.astype(np.int64, copy=False)
        unique = np.unique(labels)
        if self.num_sample >= self.num_local:
            return np.arange(self.num_local, dtype=np.int64), unique
        low, high = np.searchsorted(unique, [self.class_start, self.class_start + self.num_local])
        positive = unique[low:high] - self.class_start
        if len(positive) >= self.num_sample:
            return positive, unique
        drawn, order = self.draw(len(labels))
        index = insert_positives(drawn, order, labels - self.class_start, self.num_local)
        return np.sort(index, kind="stable"), unique
