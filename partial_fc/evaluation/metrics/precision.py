"""Precision@k and R-precision. R is the number of gallery items of the query's class.

precision_at_k is the number of these among the first k, divided by min(k, R): a perfect ranking has 1, also if R < k
(for R >= k this is the usual hits / k). r_precision is precision at R.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partial_fc.evaluation.ranking import Ranking

from .metric import QueryMetric, name_of, numbers


class Precision(QueryMetric):
    """Precision at ranks.

    Args:
        ranks: values of k.
    """

    def __init__(self, ranks: Any = (1, 5, 10)):
        self.ranks = numbers("ranks", ranks, int)
        self.figures = [name_of("precision_at", rank) for rank in self.ranks]

    def values(self, result: Ranking) -> Sequence[np.ndarray]:
        """See QueryMetric."""
        counts = result.counts[result.mated]
        return [result.hits(rank) / np.minimum(rank, counts) for rank in self.ranks]


class RPrecision(QueryMetric):
    """Precision at R."""

    figures = ("r_precision",)

    def values(self, result: Ranking) -> Sequence[np.ndarray]:
        """See QueryMetric."""
        counts = result.counts[result.mated]
        return [result.hits(counts) / counts]
