"""Positions of the mates in each query's ranking of the gallery, from which most search metrics follow.

Mates are the gallery items of a query's class. Ties count against the query: the position of the j-th mate is j plus
the number of items of other classes with an equal or higher score. A model that returns a constant finds nothing, and
the order of the gallery does not matter.

Shapes: Q queries, M gallery items, R mates of a query.
"""

from typing import NamedTuple

import numpy as np

from .items import EmbeddedItems, Workers

NO_MATES = "no query has an item of its class in the gallery: check the labels, queries and cameras"


class Ranking(NamedTuple):
    """Result of a search with Q queries."""

    classes: np.ndarray  # (Q,) int64, class of each query
    counts: np.ndarray  # (Q,) int64, R of each query
    positions: np.ndarray  # (sum of R,) int64, positions 1 .. M of the mates, ascending for each query
    best_mate: np.ndarray  # (Q,) float32, highest score of a mate, -inf without any
    best_other: np.ndarray  # (Q,) float32, highest score of another class, -inf without any

    @property
    def mated(self) -> np.ndarray:
        """(Q,) bool, whether the query has a mate. Metrics of positions leave out the other queries."""
        return self.counts > 0

    @property
    def query_classes(self) -> np.ndarray:
        """Class of each query with a mate."""
        return self.classes[self.mated]

    @property
    def starts(self) -> np.ndarray:
        """Index in ``positions`` of the first mate of each query with a mate."""
        counts = self.counts[self.mated]
        return np.cumsum(counts) - counts

    def hits(self, depth: np.ndarray | int) -> np.ndarray:
        """Returns the number of mates among the first ``depth`` items, for each query with a mate."""
        counts = self.counts[self.mated]
        limit = np.repeat(np.broadcast_to(depth, counts.shape), counts)
        return np.add.reduceat((self.positions <= limit).astype(np.int64), self.starts)


def rank(items: EmbeddedItems, workers: Workers) -> Ranking:
    """Searches all queries; every rank returns the same.

    Raises:
        ValueError: No query has a mate.
    """
    shares = workers.together(lambda: _rank_share(items, workers))
    ranking = Ranking(*(np.concatenate(parts) for parts in zip(*shares)))
    if not ranking.mated.any():
        raise ValueError(NO_MATES)
    return ranking


def _rank_share(items: EmbeddedItems, workers: Workers) -> Ranking:
    numbers, positions, counts = [np.empty(0, np.int64)], [np.empty(0, np.int64)], []
    best_mate, best_other = [], []
    for queries, scores in items.score_blocks(workers):
        numbers.append(queries)
        for query, row in zip(queries.tolist(), scores):
            columns, _ = items.mates(query)
            mates = np.sort(row[columns])
            row[columns] = -np.inf
            counts.append(len(mates))
            best_mate.append(mates[-1] if len(mates) else -np.inf)
            best_other.append(row.max())
            if len(mates):
                reached = np.searchsorted(mates, row[row >= mates[0]], side="right")  # mates behind the item
                precede = np.bincount(reached, minlength=len(mates) + 1)[:0:-1].cumsum()
                positions.append(precede + np.arange(1, len(mates) + 1))
    return Ranking(
        items.classes[np.concatenate(numbers)],
        np.array(counts, np.int64),
        np.concatenate(positions),
        np.array(best_mate, np.float32),
        np.array(best_other, np.float32),
    )
