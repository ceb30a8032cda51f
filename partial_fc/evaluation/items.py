"""Embeddings with labels, and the similarity scores of their queries and gallery, a block of queries at a time.

Shapes: N items, E embedding, C classes, Q queries, M gallery items, P pairs, n of a block.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from partial_fc.layer.sharding import shard_of

from .score_norm import CohortStatistics

SCORES = 2_000_000  # scores of a block, 8 MB
LEAST_ROWS = 64  # queries of a block, even with more scores: a product with fewer rows is slow
COLUMNS = 16_384  # gallery items of a block of pairs
PAIRS = 65_536  # given pairs of a block


class Workers(NamedTuple):
    """How ranks divide an evaluation; the default is a single process.

    Attributes:
        rank, size: This rank, and the number of ranks.
        together: Called by all ranks with a function for the rank's share; returns the results of all ranks.
        advance: Called after each block with its number of queries or pairs, to report progress.
    """

    rank: int = 0
    size: int = 1
    together: Callable[[Callable[[], Any]], list[Any]] = lambda work: [work()]
    advance: Callable[[int], object] = lambda count: None

    def blocks(self, count: int, length: int) -> Iterator[slice]:
        """Yields this rank's blocks of up to ``length`` of ``count`` elements.

        The blocks do not depend on the number of ranks, so that the scores are the same, bit by bit.
        """
        shard = shard_of(max(1, -(-count // length)), self.rank, self.size)
        for block in range(shard.start, shard.stop):
            start, stop = block * length, min((block + 1) * length, count)
            yield slice(start, stop)
            self.advance(stop - start)


ALONE = Workers()


class PairBlock(NamedTuple):
    """A block of pairs of items, as arrays that are broadcast."""

    scores: np.ndarray  # float32; -inf for pairs that are not compared
    left: np.ndarray  # int64, class of the query
    right: np.ndarray  # int64, class of the gallery item

    @property
    def genuine(self) -> np.ndarray:
        """bool, whether the items of a pair are of one class, and compared."""
        same: np.ndarray = (self.left == self.right) & (self.scores > -np.inf)
        return same


def _integers(name: str, column: np.ndarray, count: int | None = None) -> np.ndarray:
    column = np.asarray(column)
    if column.dtype.kind not in "iub":
        raise ValueError(f"{name} holds {column.dtype}, expected integers")
    if count is not None and column.shape != (count,):
        raise ValueError(f"{name} has shape {column.shape} for {count} embeddings: give one each")
    return column


class EmbeddedItems:
    """Embeddings of labeled items, as queries and gallery.

    Without ``is_query``, every item is a query, and all other items are its gallery. A query is not compared with
    itself, nor with items of its class from its own camera.

    Args:
        embeddings: (N, E) of length 1, stored as float32.
        labels: (N,) integers. Items with a negative label are neither queries nor in the gallery.
        is_query: (N,) of 0 or 1; the other items are the gallery.
        cameras: (N,) integers.
        pairs: (P, 2) integers, the items that pair metrics compare; None compares each query with its gallery, and two
            items once.
        cohort: statistics of the N items, to normalize all scores; None for cosines.

    Attributes:
        classes: (N,) int64, 0 .. C - 1, or -1.
        num_classes: C.
        queries, gallery: (Q,) and (M,) int64, numbers of the items.

    Raises:
        ValueError: Sizes or kinds of the columns are wrong, embeddings are not finite, or there is nothing to compare.
    """

    def __init__(
        self,
        embeddings: np.ndarray,
        labels: np.ndarray,
        is_query: np.ndarray | None = None,
        cameras: np.ndarray | None = None,
        pairs: np.ndarray | None = None,
        cohort: CohortStatistics | None = None,
    ):
        with np.errstate(over="ignore"):  # refused below
            embeddings = np.asarray(embeddings, np.float32)
        if embeddings.ndim != 2:
            raise ValueError(f"embeddings has shape {embeddings.shape}: give one row each, (N, E)")
        wrong = np.flatnonzero(~np.isfinite(np.einsum("ne,ne->n", embeddings, embeddings)))
        if len(wrong):
            raise ValueError(f"{len(wrong)} embeddings are not finite, the first is item {wrong[0]}: remove them")
        count = len(embeddings)
        if cohort is not None and len(cohort.mean) != count:
            raise ValueError(f"cohort has statistics of {len(cohort.mean)} items for {count} embeddings")
        labels = _integers("labels", labels, count)
        cameras = None if cameras is None else _integers("cameras", cameras, count)
        if is_query is not None:
            is_query = _integers("queries", is_query, count)
            if not np.isin(is_query, (0, 1)).all():
                raise ValueError("queries has values other than 0 and 1")
        if pairs is not None:
            pairs = _integers("pairs", pairs).astype(np.int64)
            if pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs):
                raise ValueError(f"pairs has shape {pairs.shape}: give two items per row, (P, 2)")
            if pairs.min() < 0 or pairs.max() >= count or (labels[pairs] < 0).any():
                raise ValueError(f"pairs has items without a label, or not from 0 to {count - 1}")
        self.embeddings, self.cameras, self.pairs, self.cohort = embeddings, cameras, pairs, cohort
        names, self.classes = np.unique(labels, return_inverse=True)
        self.classes = self.classes - int(np.sum(names < 0))
        self.classes[labels < 0] = -1
        self.num_classes = int(np.sum(names >= 0))
        self.queries, self.gallery = (
            np.flatnonzero((labels >= 0) & (True if is_query is None else is_query == kind)) for kind in (True, False)
        )
        if not (len(self.queries) and len(self.gallery)):
            raise ValueError(f"{len(self.queries)} queries and {len(self.gallery)} gallery items: both are needed")
        self.symmetric = is_query is None
        # The gallery by class: a class is a range of these columns.
        self._columns = np.argsort(self.classes[self.gallery], kind="stable")
        self._starts = np.searchsorted(self.classes[self.gallery[self._columns]], np.arange(self.num_classes + 1))

    def mates(self, query: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the gallery columns of a query's class: its mates, and the items to ignore."""
        start, stop = self._starts[self.classes[query] :][:2]
        columns = self._columns[start:stop]
        items = self.gallery[columns]
        ignored = items == query
        if self.cameras is not None:
            ignored |= self.cameras[items] == self.cameras[query]
        return columns[~ignored], columns[ignored]

    def score_blocks(self, workers: Workers) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (queries (n,), scores (n, M) float32) of this rank's queries; the caller may change the scores.

        Items to ignore have -inf. A block takes 8 MB, or 256 bytes for each gallery item if that is more.
        """
        first, last = self.gallery[[0, -1]].tolist()
        consecutive = last - first + 1 == len(self.gallery)  # then it needs no copy
        gallery = self.embeddings[first : last + 1] if consecutive else self.embeddings[self.gallery]
        for block in workers.blocks(len(self.queries), max(LEAST_ROWS, SCORES // len(self.gallery))):
            queries = self.queries[block]
            scores = self.embeddings[queries] @ gallery.T
            if self.cohort is not None:
                self.cohort.normalize(scores, queries[:, None], self.gallery)
            for query, row in zip(queries.tolist(), scores):
                row[self.mates(query)[1]] = -np.inf
            yield queries, scores

    def pair_blocks(self, workers: Workers) -> Iterator[PairBlock]:
        """Yields this rank's pairs; the caller may change the scores."""
        if self.pairs is not None:
            for block in workers.blocks(len(self.pairs), PAIRS):
                left, right = self.pairs[block].T
                scores = np.einsum("pe,pe->p", self.embeddings[left], self.embeddings[right])
                if self.cohort is not None:
                    self.cohort.normalize(scores, left, right)
                yield PairBlock(scores, self.classes[left], self.classes[right])
            return
        for queries, scores in self.score_blocks(workers):
            for start in range(0, len(self.gallery), COLUMNS):
                part, items = scores[:, start : start + COLUMNS], self.gallery[start : start + COLUMNS]
                if self.symmetric:
                    if queries[0] >= items[-1]:
                        continue
                    part[queries[:, None] >= items] = -np.inf
                yield PairBlock(part, self.classes[queries][:, None], self.classes[items])
