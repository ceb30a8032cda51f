"""Accuracy of classification by the k nearest gallery items, each with one vote.

A query is right if its class has more votes than every other class. If several items tie for the last place, the votes
that are worst for the query count. Queries without an item of their class are left out.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from partial_fc.evaluation.items import EmbeddedItems, Workers
from partial_fc.evaluation.ranking import NO_MATES

from .metric import QueryMetric, numbers


class Votes(NamedTuple):
    """Results of the queries with an item of their class."""

    right: np.ndarray  # (Q,) bool
    query_classes: np.ndarray  # (Q,) int64


class NearestNeighbors(QueryMetric):
    """k-NN accuracy.

    Args:
        neighbors: k; a smaller gallery votes entirely.
    """

    figures = ("knn_accuracy",)

    def __init__(self, neighbors: int = 20):
        (self.neighbors,) = numbers("neighbors", neighbors, int)

    def source(self, items: EmbeddedItems, workers: Workers) -> Votes:  # type: ignore[override]
        """Lets the neighbors vote."""

        def share() -> list[tuple[bool, int]]:
            results, classes = [], items.classes[items.gallery]
            for queries, scores in items.score_blocks(workers):
                for query, row in zip(queries.tolist(), scores):
                    if len(items.mates(query)[0]):
                        query_class = items.classes[query]
                        results.append((self._is_right(row, classes, query_class), query_class))
            return results

        results = [query for part in workers.together(share) for query in part]
        if not results:
            raise ValueError(NO_MATES)
        return Votes(*map(np.array, zip(*results)))

    def values(self, result: Votes) -> Sequence[np.ndarray]:
        """See QueryMetric."""
        return [result.right]

    def _is_right(self, row: np.ndarray, classes: np.ndarray, query_class: int) -> bool:
        column = max(0, len(row) - self.neighbors)
        last = max(np.partition(row, column)[column], np.finfo(row.dtype).min)  # ignored items have -inf
        nearer, equal = classes[row > last], classes[row == last]
        # The last places go to the other class that gains most; the query's class gets what all others leave.
        places = min(self.neighbors - len(nearer), len(equal))
        correct = np.sum(nearer == query_class) + max(0, places - np.sum(equal != query_class))
        rivals, number = np.unique(np.concatenate([nearer, equal]), return_inverse=True)
        sure, possible = (np.bincount(part, minlength=len(rivals)) for part in np.split(number, [len(nearer)]))
        votes = sure + np.minimum(possible, places)
        return bool(correct > votes[rivals != query_class].max(initial=0))
