"""Samples negatives with different probabilities, such as in proportion to the frequency of their classes.

Shapes: G global batch, L classes of this rank, S sampled classes of this rank.
"""

from typing import Any

import numpy as np

from .sampling import WeightIndexSampler


def inclusion_probabilities(weights: np.ndarray, count: int) -> np.ndarray:
    """Returns the probabilities min(1, c w) of classes with weights w, where c makes their sum ``count``.

    Args:
        weights: (L,) float64, positive.
        count: from 0 to L.

    Returns:
        (L,) float64.
    """
    weights = weights / weights.max(initial=0)  # so that no sum overflows
    certain = np.zeros(len(weights), bool)
    while not certain.all():
        factor = (count - certain.sum()) / weights[~certain].sum()
        exceeding = ~certain & (factor * weights >= 1)
        if not exceeding.any():
            return np.where(certain, 1.0, factor * weights)
        certain |= exceeding
    return np.ones(len(weights))


def checked_weights(weights: Any, num_classes: int) -> np.ndarray:
    """Returns weights of all classes as (C,) float64.

    Raises:
        ValueError: There is another number of weights, or one is not a positive real number.
    """
    values = np.asarray(weights)
    if values.shape != (num_classes,) or values.dtype.kind not in "iuf":
        raise ValueError(
            f"the sampling weights are {values.dtype} of the shape {values.shape}, expected ({num_classes},) real "
            "numbers, one per class"
        )
    values = values.astype(np.float64)
    wrong = ~(np.isfinite(values) & (values > 0))
    if wrong.any():
        number = int(wrong.argmax())
        raise ValueError(f"the sampling weight of class {number} is {values[number]}, but must be a positive number")
    return values


class WeightedSampler(WeightIndexSampler):
    """Draws each class independently of the others, with its inclusion probability (Poisson sampling).

    A class is drawn at most once, and S classes on average. The positives of a batch are added, so that the probability
    of a negative does not depend on the batch. The size of the sample does.

    Args:
        weights: (L,) float64, positive, of this rank's classes.
        num_sample, num_local, rank, class_start, seed: see WeightIndexSampler.

    Attributes:
        log_weights: (L,) float32, log(1 / p) of the probabilities p. Added to the logits of the negatives, it makes the
            expected sum of their exponentials the sum over all negatives (Horvitz and Thompson, as in log_weights of
            sampling.py; the logQ correction of Yi et al., RecSys 2019).
    """

    log_weights: np.ndarray

    def __init__(self, weights: np.ndarray, num_sample: int, num_local: int, rank: int, class_start: int, seed: int):
        super().__init__(num_sample, num_local, rank, class_start, seed)
        self._weights = weights
        self._set_probabilities()

    def resize(self, num_sample: int) -> None:
        """See WeightIndexSampler."""
        if num_sample != self.num_sample:
            super().resize(num_sample)
            self._set_probabilities()

    def _set_probabilities(self) -> None:
        self._probabilities = inclusion_probabilities(self._weights, self.num_sample)
        with np.errstate(divide="ignore"):  # without negatives, the probabilities are 0
            self.log_weights = -np.log(self._probabilities).astype(np.float32)

    def _draw(self) -> np.ndarray:
        return np.flatnonzero(self._rng.random(self.num_local) < self._probabilities)

    def __call__(self, global_label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See WeightIndexSampler."""
        if not 0 < self.num_sample < self.num_local:
            return super().__call__(global_label)
        unique = np.unique(global_label.astype(np.int64, copy=False))
        drawn = self.prefetch()
        self._ahead = None
        low, high = np.searchsorted(unique, [self.class_start, self.class_start + self.num_local])
        return np.union1d(drawn, unique[low:high] - self.class_start), unique
