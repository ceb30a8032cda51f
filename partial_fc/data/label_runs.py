"""Labels as runs of equal labels: if images are ordered by identity, memory grows with identities, not with images.

Shapes: N images, M runs of images with one label, P positions.
"""

from __future__ import annotations

import numpy as np

MAX_CLASSES = 1 << 31  # a larger label is not a class number; counts by class would not fit into memory


def class_labels(labels: np.ndarray, name: str) -> np.ndarray:
    """Returns labels (N,) of any integer type as int64, N > 0. Raises ValueError if one is not a class number."""
    for item in (int(labels.argmin()), int(labels.argmax())):
        if not 0 <= int(labels[item]) < MAX_CLASSES:  # checked first: as int64, large uint64 values are negative
            raise ValueError(f"{name}: item {item} has the label {labels[item]}: number the classes from 0")
    return labels.astype(np.int64)


class LabelRuns:
    """Runs of consecutive images with one label.

    Attributes:
        starts: (M,) int64, ascending from 0, the position where each run begins.
        labels: (M,) int64.
        num_images: N.
    """

    def __init__(self, starts: np.ndarray, labels: np.ndarray, num_images: int):
        self.starts, self.labels, self.num_images = starts, labels, num_images

    @classmethod
    def of_labels(cls, labels: np.ndarray) -> LabelRuns:
        """Returns the runs of the labels (N,) of all images."""
        starts = np.flatnonzero(np.append(True, labels[1:] != labels[:-1]))
        return cls(starts, labels[starts], len(labels))

    def labels_at(self, positions) -> np.ndarray:
        """Returns labels (P,) int64 of the images at `positions` (P,)."""
        return self.labels[np.searchsorted(self.starts, positions, side="right") - 1]

    def lengths(self) -> np.ndarray:
        """Returns the number of images of each run, (M,) int64."""
        return np.diff(self.starts, append=self.num_images)

    def images_per_label(self) -> tuple[np.ndarray, np.ndarray]:
        """Counts images by label.

        Returns:
            (K,) int64, the number of images of each label that has images, in the order of the labels; (M,) int64, for
            each run, the number of images with its label.
        """
        labels = self.labels
        # The memory must not depend on the largest label, which a tiny file can contain. Sorting takes seconds, so
        # np.unique renumbers the labels only if they are sparse.
        if labels.max() > 4 * len(labels):
            labels = np.unique(labels, return_inverse=True)[1]
        counts = np.zeros(int(labels.max()) + 1, np.int64)
        np.add.at(counts, labels, self.lengths())
        return counts[counts > 0], counts[labels]


class KeptImages:
    """The images of classes with at least `min_images` images, numbered consecutively in their order."""

    def __init__(self, runs: LabelRuns, min_images: int):
        kept = runs.images_per_label()[1] >= min_images
        self._labels, self._lengths = runs.labels[kept], runs.lengths()[kept]
        self._ends = np.cumsum(self._lengths)
        # The position of an image minus its number: the start of its run, minus the kept images before it.
        self._shift = runs.starts[kept] - (self._ends - self._lengths)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def positions(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the positions in the set, (P,) int64, of the images `numbers` (P,)."""
        return numbers + self._shift[np.searchsorted(self._ends, numbers, side="right")]

    def labels(self) -> np.ndarray:
        """Returns the labels of all images, int64."""
        return np.repeat(self._labels, self._lengths)
