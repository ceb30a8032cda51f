"""The items of a training set by class, for work that goes through it once.

Shapes: n classes, P items.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import Protocol

import numpy as np

from .batch import Inputs
from .label_runs import LabelRuns
from .prefetch import Prefetcher

AHEAD = 2  # batches that wait, beyond one per thread in progress


class LabelledBatches(Protocol):
    """A set in which the items of a class can be found: FaceBatches, or ItemBatches if its items have ``labels``."""

    min_images_per_class: int

    def label_runs(self) -> LabelRuns:
        """Returns the labels of all items. Raises ValueError if the set does not have them."""

    def read(self, positions: np.ndarray) -> tuple[Inputs, np.ndarray]:
        """Reads items as they are, not augmented. Bad ones are counted as those of a batch, and left out.

        Args:
            positions: (P,) int64 in the set.

        Returns:
            Inputs of the good ones, None if there is none; (P,) bool, which items these are.

        Raises:
            ValueError: an item is bad, and no more may be skipped; names it.
        """


class ClassImages:
    """The items of each class, such as images, not augmented.

    Args:
        batches: the set. Classes with fewer items than its ``min_images_per_class`` have none here, as in training.
        threads: that read.

    Raises:
        ValueError: the set does not have the labels of its items.
    """

    def __init__(self, batches: LabelledBatches, threads: int):
        self._batches, self._threads = batches, threads
        runs = batches.label_runs()
        kept = np.flatnonzero(runs.images_per_label()[1] >= batches.min_images_per_class)
        order = kept[np.argsort(runs.labels[kept], kind="stable")]
        self._labels, self._starts, self._lengths = runs.labels[order], runs.starts[order], runs.lengths()[order]

    def of(self, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the items of some classes.

        Args:
            classes: (n,) int64, ascending.

        Returns:
            (P,) int64, their positions in the set, class after class; (P,) int64, the place of the class of each.
        """
        first = np.searchsorted(self._labels, classes)
        runs = np.searchsorted(self._labels, classes, side="right") - first
        place = np.repeat(np.arange(len(classes)), runs)
        run = np.repeat(first, runs) + _counted(runs)
        lengths = self._lengths[run]
        return np.repeat(self._starts[run], lengths) + _counted(lengths), np.repeat(place, lengths)

    def batches(self, positions: np.ndarray, size: int) -> Iterator[tuple[Inputs, np.ndarray]]:
        """Yields the items at positions (P,) in batches of ``size``; those that follow are read meanwhile.

        Yields:
            As LabelledBatches.read.

        Raises:
            ValueError: an item is bad, and no more may be skipped.
        """
        starts = range(0, len(positions), size)
        load = self._batches.read

        def read(number: int) -> tuple[Inputs, np.ndarray]:
            return load(positions[number * size : (number + 1) * size])

        with closing(Prefetcher(read, lambda number: number + 1, self._threads, self._threads + AHEAD)) as ahead:
            for number in range(len(starts)):
                yield ahead.get(number)


def _counted(lengths: np.ndarray) -> np.ndarray:
    """0 .. length - 1 for each length, one after the other."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
