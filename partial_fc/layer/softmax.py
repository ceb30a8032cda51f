"""The softmax of the undivided layer, put together from what each rank knows of its columns.

Shapes: R ranks, G global batch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class MissingPositiveError(ValueError):
    """A label of the batch has no center among the sampled ones of any rank."""


class GlobalSoftmax(NamedTuple):
    """What every rank needs to finish its part of the softmax.

    Attributes:
        log_sum_exp: (G,) float64, logarithm of the sum of exp(logit) over the columns of all ranks.
        loss: mean over the global batch of log_sum_exp minus the target logit.
    """

    log_sum_exp: np.ndarray
    loss: float


def combine_tiles(largest: np.ndarray, total: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Combines what is known of several tiles of columns.

    Args:
        largest: (tiles, G) largest logit of each tile.
        total: (tiles, G) sum of exp(logit - that largest).

    Returns:
        (largest logit of each row, sum of exp(logit - that largest)), both (G,) float64.
    """
    largest, total = largest.astype(np.float64), total.astype(np.float64)
    top = largest.max(axis=0)
    return top, (total * np.exp(largest - top)).sum(axis=0)


def combine_statistics(statistics: np.ndarray, labels: np.ndarray) -> GlobalSoftmax:
    """Combines the softmax statistics of all ranks.

    Args:
        statistics: (R, 3, G) of each rank: the largest logit of its columns, the sum of
            exp(logit - that largest), and the target logit; -inf, 0 and -inf where it has no column,
            -inf as the target where the label's center is not among its columns.
        labels: (G,) integers, to name a label that is missing.

    Returns:
        The log-sum-exp of each row and the loss. The arithmetic is float64, and the same on every rank.

    Raises:
        MissingPositiveError: a row has no target anywhere; counted and named, because a tiny number
            added inside the logarithm would hide it as a loss stuck at 69.0776.
    """
    largest, total, target = statistics.transpose(1, 0, 2)
    target = target.max(axis=0).astype(np.float64)
    missing = np.flatnonzero(np.isneginf(target))
    if len(missing):
        raise MissingPositiveError(
            f"{len(missing)} of {len(labels)} labels have no center among the sampled ones, the first is label "
            f"{labels[missing[0]]} at row {missing[0]} of the global batch: sample() must return every positive"
        )
    top, total = combine_tiles(largest, total)
    log_sum_exp = top + np.log(total)
    return GlobalSoftmax(log_sum_exp, float(np.mean(log_sum_exp - target)))
