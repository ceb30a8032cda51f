"""Precision@k and R-precision. R is the number of gallery items of the query's class.

precision_at_k is the number of these items among the first k, divided by min(k, R), so that a perfect ranking has 1
even for R < k. r_precision is precision at R.
"""

from collections.abc import Sequence

import numpy as np

from partial_fc.evaluation.ranking import Ranking

from .metric import QueryMetric
from .recall import Recall


class Precision(Recall):
    """Precision at ranks; arguments as for Recall."""

    name = "precision_at"

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
