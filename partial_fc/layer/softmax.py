"""The softmax of the undivided layer, computed from the statistics of each rank's columns.

Over all columns c: log_sum_exp = m + log(sum_c exp(logit_c - m)) with the row maximum m; the loss of a row is
log_sum_exp - target logit.

Shapes: R ranks, G global batch.
"""

import math
from types import ModuleType
from typing import NamedTuple

import numpy as np

from . import Array


class MissingPositiveError(ValueError):
    """The center of a label of the batch is not among the sampled centers of any rank."""


class GlobalSoftmax(NamedTuple):
    """The global statistics that every rank needs to compute its probabilities."""

    # (G,) float64, log of the sum of exp(logit) over the columns of all ranks; infinite in a row that is left out, so
    # that its probabilities and gradients are 0.
    log_sum_exp: np.ndarray
    loss: float  # mean of log_sum_exp - target logit over the global batch, 0 in a row that is left out


def combine_tiles(maxima: Array, sums: Array, xp: ModuleType = np) -> tuple[Array, Array]:
    """Combines row maxima of the logits and sums of exp(logit - maximum), both (tiles, G) float64: each (G,)."""
    maximum = xp.amax(maxima, 0)
    return maximum, (sums * xp.exp(maxima - maximum)).sum(0)


def global_log_sum_exp(statistics: Array, xp: ModuleType = np) -> Array:
    """Returns GlobalSoftmax.log_sum_exp of statistics (R, 3, G) float64, see combine_statistics, which checks them."""
    maxima, sums, targets = (statistics[:, number] for number in range(3))
    maximum, total = combine_tiles(maxima, sums, xp)
    return xp.where(xp.amax(targets, 0) == -math.inf, math.inf, maximum + xp.log(total))


def combine_statistics(statistics: np.ndarray, labels: np.ndarray, requires_positives: bool = True) -> GlobalSoftmax:
    """Combines the softmax statistics of all ranks.

    Args:
        statistics: (R, 3, G), for each rank the row maxima of its logits, the sums of exp(logit - maximum), and the
            target logits. The target is -inf on ranks whose columns do not include the label's center; a rank
            without columns has -inf, 0 and -inf.
        labels: (G,) integers, for the error message.
        requires_positives: False leaves out the rows whose target no rank has.

    Returns:
        The log-sum-exp of each row and the loss, in float64 and with the same bits on every rank.

    Raises:
        MissingPositiveError: no rank has the target of a row, and `requires_positives`. (An epsilon inside the
            logarithm would hide this as a loss that stays at 69.0776.)
    """
    statistics = statistics.astype(np.float64)
    target = statistics[:, 2].max(axis=0)
    missing = np.flatnonzero(np.isneginf(target))
    if len(missing) and requires_positives:
        raise MissingPositiveError(
            f"{len(missing)} of {len(labels)} labels have no center among the sampled ones, the first is label "
            f"{labels[missing[0]]} at row {missing[0]} of the global batch: sample() must return every positive"
        )
    log_sum_exp = global_log_sum_exp(statistics)
    losses = log_sum_exp - target
    losses[missing] = 0
    return GlobalSoftmax(log_sum_exp, float(np.mean(losses)))
