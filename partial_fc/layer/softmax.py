"""Computes the softmax over all classes from statistics of each rank's columns.

For a row with the maximum m over all columns c, log_sum_exp = m + log(sum_c exp(logit_c - m)), and its loss is
log_sum_exp - target logit.

Shapes: R ranks, G global batch.
"""

import math
from typing import NamedTuple

import numpy as np


class MissingPositiveError(ValueError):
    """No rank has sampled the center of a label of the batch."""


class GlobalSoftmax(NamedTuple):
    """The global statistics from which every rank computes its probabilities."""

    # (G,) float64, the log of the sum of exp(logit) over the columns of all ranks. It is infinite for excluded rows, so
    # that their probabilities and gradients are 0.
    log_sum_exp: np.ndarray
    loss: float  # mean of log_sum_exp - target logit over the global batch, counting excluded rows as 0


def combine_tiles(maxima: np.ndarray, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Combines the tiles' row maxima and sums of exp(logit - maximum), each (tiles, G) float64, to one (G,) each."""
    maximum = maxima.max(axis=0)
    return maximum, (sums * np.exp(maxima - maximum)).sum(axis=0)


def missing_positives(count: int, labels: int, label: int, row: int) -> MissingPositiveError:
    """Returns the error of ``count`` of a number of labels; ``label`` at ``row`` of the global batch is the first."""
    return MissingPositiveError(
        f"{count} of {labels} labels have no center among the sampled ones, the first is label {label} at row {row} of "
        "the global batch: sample() must return every positive"
    )


def combine_statistics(statistics: np.ndarray, labels: np.ndarray, requires_positives: bool = True) -> GlobalSoftmax:
    """Combines the softmax statistics of all ranks.

    Args:
        statistics: (R, 3, G), for each rank the row maxima of its logits, the sums of exp(logit - maximum), and the
            target logits. A target logit is -inf on ranks without the label's center. A rank without columns has -inf,
            0 and -inf.
        labels: (G,) integers, for the error message.
        requires_positives: whether rows without a target on any rank are an error. Otherwise they are excluded.

    Returns:
        The log-sum-exp of each row and the loss, in float64, with identical bits on all ranks.

    Raises:
        MissingPositiveError: no rank has the target of a row. (An epsilon inside the logarithm would hide this error
            as a loss that stays at 69.0776.)
    """
    statistics = statistics.astype(np.float64)
    target = statistics[:, 2].max(axis=0)
    missing = np.flatnonzero(np.isneginf(target))
    if len(missing) and requires_positives:
        raise missing_positives(len(missing), len(labels), labels[missing[0]], missing[0])
    maximum, total = combine_tiles(statistics[:, 0], statistics[:, 1])
    log_sum_exp = np.where(np.isneginf(target), math.inf, maximum + np.log(total))
    losses = log_sum_exp - target
    losses[missing] = 0
    return GlobalSoftmax(log_sum_exp, float(np.mean(losses)))
