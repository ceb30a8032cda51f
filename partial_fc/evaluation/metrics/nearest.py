"""Accuracy of classification by the k nearest gallery items, each with one vote.

A query is right if its class has more votes than every other class. Of items with equal scores at the last place, those
count that are worst for the query. Queries without an item of their class are left out.
"""

import numpy as np

from partial_fc.evaluation.items import EmbeddedItems, Workers

from .metric import QueryMetric, numbers


class NearestNeighbors(QueryMetric):
    """k-NN accuracy.

    Args:
        neighbors: k; a smaller gallery votes entirely.
    """

    figures = ("knn_accuracy",)

    def __init__(self, neighbors: int = 20):
        (self.neighbors,) = numbers("neighbors", neighbors, int)

    def source(self, items: EmbeddedItems, workers: Workers) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[override]
        """Returns whether each query is right (1, Q), and the classes (Q,)."""

        def share() -> list[tuple[bool, int]]:
            found, classes = [], items.classes[items.gallery]
            for queries, scores in items.score_blocks(workers):
                for query, row in zip(queries.tolist(), scores):
                    if len(items.mates(query)[0]):
                        own = items.classes[query]
                        found.append((self._is_right(row, classes, own), own))
            return found

        right, classes = zip(*(query for part in workers.together(share) for query in part))
        return np.array([right], float), np.array(classes)

    def values(self, result: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """See QueryMetric."""
        return result

    def _is_right(self, row: np.ndarray, classes: np.ndarray, own: int) -> bool:
        place = max(0, len(row) - self.neighbors)
        last = max(np.partition(row, place)[place], np.finfo(row.dtype).min)  # ignored items have -inf
        nearer, equal = classes[row > last], classes[row == last]
        places = self.neighbors - len(nearer)
        # The places left go to the other class that gains most, and to the query's own only if others leave some.
        votes = np.bincount(nearer, minlength=own + 1)
        others = np.bincount(equal, minlength=len(votes))
        votes = np.pad(votes, (0, len(others) - len(votes)))
        own_votes = votes[own] + max(0, min(places, len(equal)) - int(np.sum(equal != own)))
        rivals = votes + np.minimum(others, places)
        rivals[own] = 0
        return bool(own_votes > rivals.max())
