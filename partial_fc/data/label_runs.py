"""Labels as runs of equal labels: if images are ordered by identity, memory grows with identities, not with images.

Items have one label each, (N,), or up to P, (N, P), where NO_LABEL fills the places of the missing ones.

Shapes: N images, M runs of images with the same labels, P labels of an image, n positions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

MAX_LABELS = 1024  # labels of an item; a tiny file could otherwise ask for any memory
PADDED_LABELS = 1 << 25  # that padding may add whatever the labels are
MAX_CLASSES = 1 << 31  # a larger label is not a class number; counts by class would not fit into memory
NO_LABEL = -1  # as an index of counts by class, their last place, which holds 0


def class_labels(values: Any, name: str) -> np.ndarray:
    """Returns labels of any integer type as (N,) or (N, P) int64, see label_array.

    Raises:
        ValueError: a label is neither a class number nor, in (N, P), NO_LABEL; or no item has a label.
    """
    labels = label_array(values)
    if not labels.size or labels.ndim > 2 or labels.dtype.kind not in "iu":
        raise ValueError(f"{name}: {labels.dtype} of shape {labels.shape}, expected an integer or a list for each item")
    for place in (labels.argmin(), labels.argmax()):
        item, label = int(place) // (labels.size // len(labels)), int(labels.flat[place])
        if not (0 if labels.ndim == 1 else NO_LABEL) <= label < MAX_CLASSES:  # before uint64 overflows int64
            raise ValueError(f"{name}: item {item} has the label {label}: number the classes from 0")
    if labels.max() == NO_LABEL:
        raise ValueError(f"{name}: no item has a label")
    return labels.astype(np.int64)


def label_array(labels: Any) -> np.ndarray:
    """Returns the labels of N items as (N,), or as (N, P) if items have lists or arrays of up to P labels.

    The result may hold other types than integers, or have another shape, if ``labels`` do.
    """
    if hasattr(labels, "shape") or not any(hasattr(each, "__len__") and np.ndim(each) for each in labels):
        labels = np.asarray(labels)
        if labels.ndim == 2 and labels.shape[1] > MAX_LABELS:
            raise ValueError(f"an item has {labels.shape[1]} labels, expected at most {MAX_LABELS}")
        return labels
    rows = [np.atleast_1d(each) for each in labels]
    filled = [row for row in rows if row.size]
    return padded(np.concatenate(filled) if filled else np.empty(0, np.int64), np.array([len(row) for row in rows]))


def padded(labels: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns labels (N, P) of items with ``lengths`` (N,) labels each, which ``labels`` holds item after item.

    If every item has one label, the result is (N,).
    """
    if labels.ndim != 1:
        return labels.astype(object)  # callers refuse all types but integers
    if labels.dtype.kind not in "iu" or (lengths == 1).all():
        return labels
    if lengths.max() > MAX_LABELS:
        raise ValueError(f"an item has {lengths.max()} labels, expected at most {MAX_LABELS}")
    width = max(1, int(lengths.max()))
    if len(lengths) * width > PADDED_LABELS + 32 * (len(lengths) + len(labels)):
        raise ValueError(
            f"an item has {width} labels, but most items have few: move such items into a set of their own"
        )
    filled = np.arange(width) < lengths[:, None]
    rows = np.full(filled.shape, NO_LABEL)
    rows[filled] = labels
    return rows


def distinct(labels: np.ndarray) -> np.ndarray:
    """Returns the labels (n, P) of items in ascending order, with NO_LABEL in place of repeated ones."""
    labels = np.sort(labels, axis=1)
    labels[:, 1:][labels[:, 1:] == labels[:, :-1]] = NO_LABEL
    return labels


def each_label(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the item and the class of each label of items, both (K,); ``labels`` (n,) or (n, P) may be repeated."""
    if labels.ndim == 1:
        return np.arange(len(labels)), labels
    labels = distinct(labels)
    items, columns = np.nonzero(labels != NO_LABEL)
    return items, labels[items, columns]


class LabelRuns:
    """Runs of consecutive images with the same labels.

    Attributes:
        starts: (M,) int64, ascending from 0, the position where each run begins.
        labels: (M,) or (M, P) int64.
        num_images: N.
    """

    def __init__(self, starts: np.ndarray, labels: np.ndarray, num_images: int):
        self.starts, self.labels, self.num_images = starts, labels, num_images

    @classmethod
    def of_labels(cls, labels: np.ndarray) -> LabelRuns:
        """Returns the runs of the labels (N,) or (N, P) of all images."""
        differ = labels[1:] != labels[:-1]
        starts = np.flatnonzero(np.append(True, differ if labels.ndim == 1 else differ.any(axis=1)))
        return cls(starts, labels[starts], len(labels))

    def lengths(self) -> np.ndarray:
        """Returns the number of images of each run, (M,) int64."""
        return np.diff(self.starts, append=self.num_images)

    def images_per_label(self) -> tuple[np.ndarray, np.ndarray]:
        """Counts images by label; an image counts for each of its labels.

        Returns:
            (K,) int64, the number of images of each label that has images, in the order of the labels; in the shape of
            ``labels``, the number of images with this label, 0 for NO_LABEL.
        """
        labels = self.labels
        # The memory must not depend on the largest label, which a tiny file can contain. Sorting takes seconds, so
        # np.unique renumbers the labels only if they are sparse.
        if labels.max() > 4 * labels.size:
            present, labels = np.unique(labels, return_inverse=True)
            # The first one is NO_LABEL if an image lacks a label, and stays -1.
            labels = labels.reshape(self.labels.shape) - (present[0] == NO_LABEL)
        counts = np.zeros(int(labels.max()) + 2, np.int64)  # one more for NO_LABEL
        runs, label = each_label(labels)
        np.add.at(counts, label, self.lengths()[runs])
        return counts[counts > 0], counts[labels]


class KeptImages:
    """The images of classes with at least `min_images` images, numbered consecutively in their order.

    Of several labels, those of other classes become NO_LABEL; an image is left out if it has no other label.
    """

    def __init__(self, runs: LabelRuns, min_images: int):
        few = runs.images_per_label()[1] < min_images
        kept = ~(few if few.ndim == 1 else few.all(axis=1))
        self._labels, self._lengths = np.where(few, NO_LABEL, runs.labels)[kept], runs.lengths()[kept]
        self._ends = np.cumsum(self._lengths)
        # The position of an image minus its number: the start of its run, minus the kept images before it.
        self._shift = runs.starts[kept] - (self._ends - self._lengths)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def at(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the positions in the set, (n,), and the labels, (n,) or (n, P), of the images `numbers` (n,)."""
        runs = np.searchsorted(self._ends, numbers, side="right")
        return numbers + self._shift[runs], self._labels[runs]

    def labels(self) -> np.ndarray:
        """Returns the labels of all images, int64."""
        return np.repeat(self._labels, self._lengths, axis=0)
