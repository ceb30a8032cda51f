"""Recall@k, and CMC.

recall_at_k is the share of queries with at least one item of their class among the first k: recall as in metric
learning, or the cumulative match characteristic (CMC) at rank k. recall_at_1 is rank-1 accuracy. For re-identification,
give the items their cameras: a query ignores images of its class from its own camera.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from partial_fc.evaluation.ranking import Ranking

from .metric import QueryMetric, name_of, numbers


class Recall(QueryMetric):
    """Recall at ranks.

    Args:
        ranks: values of k.
    """

    name = "recall_at"

    def __init__(self, ranks: Any = (1, 5, 10)):
        self.ranks = numbers("ranks", ranks, int)
        self.figures = [name_of(self.name, rank) for rank in self.ranks]

    def values(self, result: Ranking) -> Sequence[np.ndarray]:
        """See QueryMetric."""
        first = result.positions[result.starts]
        return [first <= rank for rank in self.ranks]


class MatchCharacteristic(Recall):
    """Recall under its name in re-identification."""

    name = "cmc_at"
