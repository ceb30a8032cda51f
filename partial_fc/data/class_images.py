"""The images of a face set by class, for work that goes through it once.

Shapes: n classes, P images, N images of a batch, H, W image size.
"""

from collections.abc import Iterator
from contextlib import closing

import numpy as np

from .batch_loader import FaceBatches
from .prefetch import Prefetcher

AHEAD = 2  # decoded batches that wait, beyond one per thread in progress


class ClassImages:
    """The images of each class, not augmented.

    Args:
        faces: the set. Classes with fewer images than its ``min_images_per_class`` have none here, as in training.
        threads: that decode.
    """

    def __init__(self, faces: FaceBatches, threads: int):
        self._faces, self._threads = faces, threads
        runs = faces.records.runs
        counts = runs.images_per_label(faces.records.num_identities)
        kept = np.flatnonzero(counts[runs.labels] >= faces.min_images_per_class)
        order = kept[np.argsort(runs.labels[kept], kind="stable")]
        self._labels, self._starts, self._lengths = runs.labels[order], runs.starts[order], runs.lengths()[order]

    def of(self, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the images of some classes.

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

    def batches(self, positions: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the images at positions (P,) in batches of ``size``; those that follow are decoded meanwhile.

        Yields:
            As FaceBatches.read.

        Raises:
            ValueError: an image is bad, and no more may be skipped.
        """
        starts = range(0, len(positions), size)
        load = self._faces.read

        def read(number: int) -> tuple[np.ndarray, np.ndarray]:
            return load(positions[number * size : (number + 1) * size])

        with closing(Prefetcher(read, lambda number: number + 1, self._threads, self._threads + AHEAD)) as ahead:
            for number in range(len(starts)):
                yield ahead.get(number)


def _counted(lengths: np.ndarray) -> np.ndarray:
    """0 .. length - 1 for each length, one after the other."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
