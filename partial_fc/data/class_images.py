"""The items of a training set by class, for a single pass over the set.

Shapes: n classes, P items.
"""

from collections.abc import Iterator
from contextlib import closing

import numpy as np

from .batch import Inputs
from .item_batches import ItemBatches
from .label_runs import LabelRuns, each_label
from .prefetch import Prefetcher

AHEAD = 2  # batches read ahead, besides one in progress per thread


class ClassImages:
    """The items of each class, without augmentation; an item belongs to each of its labels.

    Args:
        batches: the set, whose items must have labels.
        threads: number of threads that read.

    Raises:
        ValueError: the set does not have the labels of its items.
    """

    def __init__(self, batches: ItemBatches, threads: int):
        self._batches, self._threads = batches, threads
        runs = LabelRuns.of_labels(batches.labels())
        run, labels = each_label(runs.labels)
        order = np.argsort(labels, kind="stable")
        self._labels, run = labels[order], run[order]
        self._starts, self._lengths = runs.starts[run], runs.lengths()[run]

    def of(self, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the items of some classes.

        Args:
            classes: (n,) int64, ascending.

        Returns:
            (P,) int64, the positions of the items, class after class; (P,) int64, the index of each item's class in
            `classes`.
        """
        first = np.searchsorted(self._labels, classes)
        runs = np.searchsorted(self._labels, classes, side="right") - first
        index = np.repeat(np.arange(len(classes)), runs)
        run = np.repeat(first, runs) + _aranges(runs)
        lengths = self._lengths[run]
        return np.repeat(self._starts[run], lengths) + _aranges(lengths), np.repeat(index, lengths)

    def batches(self, positions: np.ndarray, size: int) -> Iterator[tuple[Inputs | None, np.ndarray]]:
        """Yields the items at positions (P,) in batches of ``size``; threads read ahead.

        Yields:
            See ItemBatches.read.

        Raises:
            ValueError: an item is bad, and no more may be skipped.
        """
        batches = self._batches

        def read(start: int) -> tuple[Inputs | None, np.ndarray]:
            return batches.read(positions[start : start + size])

        with closing(Prefetcher(read, lambda start: start + size, self._threads, self._threads + AHEAD)) as ahead:
            for start in range(0, len(positions), size):
                yield ahead.get(start)


def _aranges(lengths: np.ndarray) -> np.ndarray:
    """Concatenates np.arange(length) for each length."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
