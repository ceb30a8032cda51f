"""Error rates of pairs at every threshold, without keeping the scores of the pairs of different classes.

A threshold accepts the pairs that reach it, so pairs with equal scores are accepted together. Genuine pairs are of one
class, impostor pairs of two. The best thresholds are genuine scores, so it suffices to count the impostor pairs between
them. Memory grows by about 130 bytes per genuine pair.

For intervals, the classes are divided at random into U <= 64 groups (of one class each if there are at most 64), and
the pairs of every two groups are counted at up to 512 thresholds. A bootstrap draws groups: the pairs of groups g and h
count w(g) w(h) times, because a class that is often mistaken appears in many pairs.

Shapes: K thresholds, P points of a curve, U groups, T bins of a group.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .items import EmbeddedItems, Workers

GROUPS = 64
BINS = 512


class Curve(NamedTuple):
    """Error rates by threshold, from the threshold that accepts nothing to the one that accepts every pair."""

    thresholds: np.ndarray  # (P,) descending; infinite at both ends
    false_rejects: np.ndarray  # (P,) share of the genuine pairs below the threshold (FRR, miss rate)
    false_accepts: np.ndarray  # (P,) share of the impostor pairs at or above it (FAR)


class PairCounts:
    """Counts of pairs by score.

    Args:
        genuine: genuine scores, in any order.
        groups: group of each genuine pair.
        num_groups: U.
        thresholds: further thresholds to count at.

    Attributes:
        units: U.
        edges: (K + 1,) float32, ascending: the lowest number, the genuine scores and the further thresholds.
        counts: numbers of impostor pairs: (K + 2,) by the number of edges that the score reaches, 0 for pairs that are
            not compared; (K + 2,) the same, of scores equal to an edge; (U^2, T) by pair of groups and bin of edges.
    """

    def __init__(self, genuine: np.ndarray, groups: np.ndarray, num_groups: int, thresholds: Sequence[float]):
        self.units = num_groups
        lowest = np.finfo(np.float32).min  # pairs that are not compared, with a score of -inf, are below it
        self.edges = np.unique(np.concatenate([genuine, thresholds, [lowest]]).clip(lowest).astype(np.float32))
        size = len(self.edges)
        self._bin_of = np.arange(size + 1)
        if size > BINS:  # bins are narrow at both ends, where good models have their thresholds
            share = np.arcsin(np.sqrt(np.arange(size) / (size - 1))) / np.arcsin(1)
            self._bin_of[1:] = 1 + np.floor(share * BINS)
        self._bins = self._bin_of[-1] + 1
        reached = np.searchsorted(self.edges, genuine, side="right")
        self._genuine = np.bincount(reached, minlength=size + 1), self._by_bin(reached, groups, num_groups)
        self.counts = [np.zeros(shape, np.int64) for shape in (size + 1, size + 1, (num_groups**2, self._bins))]

    def add(self, scores: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
        """Counts impostor pairs of the groups ``left`` and ``right``; shapes are broadcast."""
        reached = np.searchsorted(self.edges, scores, side="right")
        is_equal = self.edges[reached - 1] == scores
        for counts, numbers in zip(self.counts, (reached.ravel(), reached[is_equal])):
            counts += np.bincount(numbers, minlength=len(counts))
        self.counts[2] += self._by_bin(reached, left * self.units + right, self.units**2)

    def curve(self, times: np.ndarray | None = None) -> Curve:
        """Returns the exact curve, or if groups occur ``times`` (U,), a curve at the first edge of each bin."""
        reached, equal = self.counts[0][1:], self.counts[1][1:]
        genuine, genuine_by_group = (counts[..., 1:] for counts in self._genuine)
        if times is not None:
            weights = np.outer(times, times)
            np.fill_diagonal(weights, times)  # the copies of a group are not compared with each other
            first = np.searchsorted(self._bin_of, np.arange(2, self._bins)) - 1
            impostor = weights.ravel().astype(np.float32) @ self._by_groups
            return _curve(self.edges[first], times @ genuine_by_group, impostor.astype(np.float64))
        # Each edge has a point that accepts only higher scores, and one that also accepts equal ones. Lines between
        # points are horizontal or vertical, unless genuine and impostor pairs have the same score.
        between = np.repeat(self.edges, 2)[1:]
        between[::2] = np.nextafter(self.edges, np.float32(np.inf))
        both = np.zeros((2, 2 * len(self.edges)), np.int64)
        both[0, ::2], both[1, ::2], both[1, 1::2] = genuine, equal, reached - equal
        return _curve(between, *both)

    @cached_property
    def _by_groups(self) -> np.ndarray:
        # For 1,000 products: NumPy is slow with integers, and their last digits do not matter to an interval.
        return self.counts[2][:, 1:].astype(np.float32)

    def _by_bin(self, reached: np.ndarray, groups: np.ndarray, num_groups: int) -> np.ndarray:
        cells = groups * self._bins + self._bin_of[reached]
        return np.bincount(cells.ravel(), minlength=num_groups * self._bins).reshape(num_groups, self._bins)


def _curve(thresholds: np.ndarray, genuine: np.ndarray, impostor: np.ndarray) -> Curve:
    """Makes a curve from ascending thresholds and the numbers of pairs below, between and above them."""
    with np.errstate(invalid="ignore"):  # a draw may have no pairs of a kind
        below, above = np.cumsum(genuine) / genuine.sum(), np.cumsum(impostor[::-1]) / impostor.sum()
    # The first point accepts nothing, the last one everything.
    return Curve(
        np.concatenate([[np.inf], thresholds[::-1], [-np.inf]]),
        np.concatenate([below[::-1], [0.0]]),
        np.concatenate([[0.0], above]),
    )


def count_pairs(items: EmbeddedItems, workers: Workers, thresholds: Sequence[float] = ()) -> PairCounts:
    """Counts all pairs; every rank returns the same.

    Args:
        items: the items.
        workers: the ranks.
        thresholds: thresholds to count at in addition to the genuine scores.

    Raises:
        ValueError: There are no genuine or no impostor pairs.
    """
    num_groups = min(items.num_classes, GROUPS)
    order = np.random.Generator(np.random.PCG64(0)).permutation(items.num_classes)
    group_of = np.empty(items.num_classes, np.int64)
    group_of[order] = np.arange(items.num_classes) % num_groups

    def genuine() -> tuple[np.ndarray, ...]:
        parts = [(np.empty(0, np.float32), np.empty(0, np.int64))]
        for block in items.pair_blocks(workers):
            same = block.genuine
            parts.append((block.scores[same], group_of[np.broadcast_to(block.left, same.shape)[same]]))
        return tuple(np.concatenate(part) for part in zip(*parts))

    def impostors() -> list[np.ndarray]:
        share = PairCounts(scores, groups, num_groups, thresholds)
        for block in items.pair_blocks(workers):
            block.scores[block.genuine] = -np.inf
            share.add(block.scores, group_of[block.left], group_of[block.right])
        return share.counts

    scores, groups = (np.concatenate(parts) for parts in zip(*workers.together(genuine)))
    if not len(scores):
        raise ValueError("there are no pairs of one class: check the labels, queries, cameras or pairs")
    pairs = PairCounts(scores, groups, num_groups, thresholds)
    pairs.counts = [np.sum(parts, axis=0) for parts in zip(*workers.together(impostors))]
    if not pairs.counts[0][1:].any():
        raise ValueError("there are no pairs of different classes: check the labels, queries, cameras or pairs")
    return pairs
