"""Samples the class centers of a step: all positives, and uniform negatives.

Shapes: G global batch, L classes of this rank, S sampled classes of this rank, P positive classes of this rank.
"""

import math
from concurrent.futures import Future, ThreadPoolExecutor
from types import ModuleType

import numpy as np

from . import Array


def _sorted_draws(pool: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draws ``size`` numbers from 0 .. pool-1 with replacement, in linear time; returns (size,) int64, sorted.

    The first n of n + 1 cumulative sums of exponential variables, divided by the last sum, are n sorted uniform
    variables (Devroye: Non-Uniform Random Variate Generation, 1986, chapter V.3), in the resolution of float64.
    """
    sums = rng.standard_exponential(size + 1)
    np.cumsum(sums, out=sums)
    sums *= pool / sums[-1]
    # A sum can be rounded up to ``pool``.
    return np.minimum(sums[:-1], pool - 1, out=sums[:-1]).astype(np.int64)


def draw_classes(num_local: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draws ``count`` of the L classes of a rank uniformly without replacement; returns (count,) int64, sorted.

    Time and memory are O(count), independent of L.
    """
    if 2 * count > num_local:  # draw the classes to leave out
        chosen = np.ones(num_local, dtype=bool)
        chosen[draw_classes(num_local, num_local - count, rng)] = False
        return np.flatnonzero(chosen)
    if count == 0:
        return np.empty(0, dtype=np.int64)
    # Draws with replacement are symmetric in the classes. So all sets of distinct classes of the same size are equally
    # likely, also after small sets are rejected because of their size and large sets are reduced by a uniform choice.
    # This size yields ``count`` distinct classes on average, plus five standard deviations of at most 0.8 sqrt(count).
    size = int(-num_local * math.log1p(-count / num_local) + 4 * math.sqrt(count)) + 1
    while True:
        drawn = _sorted_draws(num_local, size, rng)
        drawn = drawn[np.append(True, drawn[1:] != drawn[:-1])]
        if len(drawn) >= count:
            return np.delete(drawn, rng.choice(len(drawn), len(drawn) - count, replace=False, shuffle=False))


def insert_positives(drawn: Array, order: Array, local: Array, num_local: int, xp: ModuleType = np) -> Array:
    """Replaces drawn negatives by the positives of a batch that have not been drawn.

    Only this function needs the labels, and the size of its result does not depend on their values, so the host need
    not wait for a GPU. All sets of S - P negatives are equally likely, because the drawn classes and the random
    positions are symmetric in the negatives. There are always enough negatives at these positions: there are at
    least P of them, and a missing positive is at none.

    Args:
        drawn: (S,) int64 sorted, from `draw_classes`, S at least P; overwritten.
        order: (min(G, S),) int64, distinct positions in ``drawn`` in random order.
        local: (G,) int64, the labels minus this rank's first class. Labels outside 0 .. L-1 belong to other ranks.
        num_local: L.
        xp: numpy or torch.

    Returns:
        ``drawn``, (S,) int64, all positives and S - P negatives in any order.
    """
    local = local[xp.argsort(local)]
    last = len(local) - 1
    missing = (local >= 0) & (local < num_local)
    missing[1:] &= local[1:] != local[:-1]
    missing &= local != drawn[xp.clip(xp.searchsorted(drawn, local), 0, len(drawn) - 1)]
    count = xp.cumsum(missing, 0)
    inserted = xp.zeros_like(local)
    # Moves the missing positives to the front. All other labels go to the last position, which is then free.
    inserted[xp.where(missing, count - 1, last)] = local
    removed = drawn[order]
    negative = removed != local[xp.clip(xp.searchsorted(local, removed), 0, last)]
    number = xp.cumsum(negative, 0)
    replaced = negative & (number <= count[-1])
    drawn[order] = xp.where(replaced, inserted[xp.clip(number - 1, 0, last)], removed)
    return drawn


def label_columns(labels: Array, local_index: Array, class_start: int, xp: ModuleType = np) -> Array:
    """Returns (G,), the column of each label's center among the sampled centers, or -1 if it is not sampled.

    Args:
        labels: (G,) int64, global class ids.
        local_index: (S,) int64, sorted local indices, S at least 1.
        class_start: first class of this rank.
        xp: numpy or torch.
    """
    local = labels - class_start
    column = xp.clip(xp.searchsorted(local_index, local), 0, len(local_index) - 1)
    return xp.where(local_index[column] == local, column, -1)


# Error messages of both trainers.
NOTHING_TO_CORRECT = "sampling_correction weights sampled negatives, but with a sample ratio of 0 there are none"
UNKNOWN_PROBABILITIES = "sampling_correction does not know the probabilities of your own sample(): leave it out"


def log_weights(drawn: Array, num_local: int, xp: ModuleType = np) -> Array:
    """Returns terms to add to the logits that make the sum of exponentials an unbiased estimate over all classes.

    Every negative is drawn with the same probability p = (S - P) / (L - P), so a drawn negative counts 1 / p times
    (Horvitz and Thompson 1952, A generalization of sampling without replacement from a finite universe): its term is
    log(1 / p). Positives are in every sample, also as negatives of other rows, and their term is 0. A sample of
    positives alone cannot represent the negatives.

    Args:
        drawn: (S,) bool, False for the positives of the batch.
        num_local: L.
        xp: numpy or torch.

    Returns:
        (S,) floating point.
    """
    count = xp.clip(drawn.sum(), 1, None)  # S - P
    return xp.where(drawn, xp.log1p((num_local - len(drawn)) / count), 0.0)


class WeightIndexSampler:
    """Samples the centers of a step for one rank (arXiv 2203.15565, section 3.2, PPRN sampling).

    A sample contains all positives, even if they are more than ``num_sample``, and is filled up with negatives. With
    ``num_sample`` >= L it contains all centers, and with 0 only the positives. In both cases, nothing is drawn. The
    classes of a step are drawn before its labels are known.

    Args:
        num_sample: S, the number of centers per step, unless there are more positives.
        num_local: L.
        rank: this rank. It is part of the seed, so that ranks draw independently.
        class_start: first class of this rank; by default ``rank * num_local``, which is correct if R divides C.
        seed: determines all draws, together with the rank.
    """

    def __init__(self, num_sample: int, num_local: int, rank: int, class_start: int | None = None, seed: int = 0):
        self.num_sample = num_sample
        self.num_local = num_local
        self.class_start = rank * num_local if class_start is None else class_start
        # The constant separates this stream from others with the seed (seed, rank).
        self._key = [seed, rank, 0x5A]
        self._rng = np.random.default_rng(self._key)
        self._ahead: Future[np.ndarray] | None = None
        self._state = self._rng.bit_generator.state

    def state(self) -> dict:
        """Returns the random generator's state before the next step, as nested dicts of integers and strings."""
        return dict(self._rng.bit_generator.state if self._ahead is None else self._state)

    def restore(self, state: dict) -> None:
        """Restores a state from state().

        Raises:
            ValueError: the state is not valid.
        """
        if self._ahead is not None:
            self._ahead.result()  # the thread may still be using the generator
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
        """Changes the number of centers, also for the next step if its classes are drawn already."""
        if num_sample != self.num_sample:
            self.restore(self.state())
            self.num_sample = num_sample

    def begin_draw(self) -> Future[np.ndarray]:
        """Starts drawing the next step's classes in a thread, unless already started. They must not be modified.

        Returns:
            A future of (S,) int64, sorted. The step replaces some of these classes by its positives. With ten million
            classes on eight ranks and a sample ratio of 10 %, drawing takes 3 ms. NumPy holds the GIL for less than
            half of that time, so the main thread can start the backbone's backward pass on the GPU.
        """
        if self._ahead is None:
            self._state = self._rng.bit_generator.state
            thread = ThreadPoolExecutor(1, thread_name_prefix="negatives")
            self._ahead = thread.submit(self._draw)
            thread.shutdown(wait=False)  # no thread is left after the draw, which a copy or fork could not take along
        return self._ahead

    def _draw(self) -> np.ndarray:
        return draw_classes(self.num_local, self.num_sample, self._rng)

    def prefetch(self) -> np.ndarray:
        """Returns a copy of the classes of the next step, see begin_draw()."""
        return self.begin_draw().result().copy()

    def draw(self, batch: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the arguments ``drawn`` and ``order`` of insert_positives for a step of G labels; S is below L."""
        drawn = self.prefetch()
        self._ahead = None
        return drawn, self._rng.choice(self.num_sample, min(batch, self.num_sample), replace=False)

    def __getstate__(self) -> dict:
        """Returns the attributes of a copy, which repeats draws that this sampler has made ahead."""
        rng = np.random.default_rng(0)
        rng.bit_generator.state = self.state()
        return {**vars(self), "_rng": rng, "_ahead": None}

    def __call__(self, global_label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the local index (S,) int64 and the unique labels (U,), both sorted, for the global labels (G,)."""
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
