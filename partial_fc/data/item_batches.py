"""Batches of any set whose items can be read by position, in the order of train.rec: resumed at any number of ranks.

Shapes: N items, B local batch, R ranks, G = B*R global batch, C classes.
"""

import hashlib
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from partial_fc.utils.text import plural

from .batch import Batch, Inputs, arrays_of, joined, map_inputs
from .label_runs import LabelRuns, class_labels
from .rank_batches import RankBatches
from .read_log import ReadLog

DIGESTED = 1 << 16  # items at a time


class Items(Protocol):
    """A set of N items with labels; ``len(items)`` is N. Threads read it at once.

    If it has an attribute ``labels``, (N,) integers of all items, ``new_centers=mean`` works with it. Messages name an
    item by ``describe(position)``, if there is such a method.
    """

    @property
    def num_classes(self) -> int:
        """Number of classes in the set."""

    @property
    def digest(self) -> str:
        """Identifies the content, independent of its path; ranks whose sets differ are refused."""

    def __len__(self) -> int: ...

    def read(self, positions: np.ndarray, epoch: int) -> Batch:
        """Returns items and labels at positions (B,) int64.

        An item may depend on (seed, epoch, position) alone, not on the others that are read with it: then a resumed
        training reads the same. For what is random in it see partial_fc.data.order.uniform_draws.

        An item with a number that is not finite is bad.

        Raises:
            ValueError: an item is bad; names it. It is then read alone.
        """

    def close(self) -> None:
        """Closes the files."""


class ArrayItems:
    """Items in memory.

    Args:
        inputs: (N, ...), one array or several by name.
        labels: (N,) integers.
        rows: (N,) integers; the items are these rows of ``inputs``, then (M, ...), which are not copied: the ranks of a
            host share a memory map. None: all rows.

    Raises:
        ValueError: the lengths differ, there is no item, or a label is no number of a class.
    """

    def __init__(self, inputs: Inputs, labels: np.ndarray, rows: np.ndarray | None = None):
        self.inputs, self.labels, self.rows = inputs, np.asarray(labels), rows
        arrays = arrays_of(inputs)
        for name, array in arrays.items():
            count = len(array if rows is None else rows)
            if count != len(self.labels):
                raise ValueError(f"{count} {name}, but {len(self.labels)} labels")
        if not len(self.labels) or self.labels.dtype.kind not in "iu":
            raise ValueError(f"{len(self.labels)} labels of {self.labels.dtype}, expected one integer or more")
        self.labels = class_labels(self.labels, "labels")
        self.num_classes = int(self.labels.max()) + 1
        digest = hashlib.sha256(self.labels.tobytes())
        for name, array in arrays.items():
            digest.update(f"{name} {array.dtype} {(len(self), *array.shape[1:])}".encode())
            for start in range(0, len(self), DIGESTED):
                part = slice(start, start + DIGESTED)
                digest.update(np.ascontiguousarray(array[part if rows is None else rows[part]]).data)
        self.digest = digest.hexdigest()

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, positions: np.ndarray, epoch: int) -> Batch:
        """See Items."""
        rows = positions if self.rows is None else self.rows[positions]
        return Batch(map_inputs(lambda array: array[rows], self.inputs), self.labels[positions])

    def close(self) -> None:
        """Does nothing."""


class ItemBatches(RankBatches):
    """The batches of one rank; the bytes that it counts are those of the arrays.

    Args:
        items: the set.
        batch_size, shuffle, rank, size, seed: see RankBatches.
        skip_bad_items: number of bad items to replace by the following one, see ReadLog.
    """

    min_images_per_class = 0

    def __init__(
        self,
        items: Items,
        batch_size: int,
        shuffle: bool,
        rank: int = 0,
        size: int = 1,
        seed: int = 0,
        skip_bad_items: int = 0,
    ):
        super().__init__(len(items), batch_size, shuffle, rank, size, seed, ReadLog(skip_bad_items))
        self.items, self.num_classes = items, items.num_classes

    @property
    def digest(self) -> str:
        """Identifies the content of the set."""
        return self.items.digest

    def _load(self, numbers: np.ndarray, epoch: int) -> tuple[Batch, int, float]:
        start, computing = time.perf_counter(), time.thread_time()
        found = self._checked(self._read(numbers, epoch), numbers)
        seconds, num_bytes = time.perf_counter() - start, sum(each.nbytes for each in arrays_of(found.inputs).values())
        waiting = max(0.0, seconds - (time.thread_time() - computing))  # for files, another process, or Python's lock
        return found, num_bytes, waiting

    def _read(self, positions: np.ndarray, epoch: int) -> Batch:
        """Returns the items at positions (B,), bad ones replaced by the following one."""
        try:
            return read_finite(self.items, positions, epoch)
        except ValueError:  # one of them is bad

            def read(position: int) -> tuple[int, Batch]:
                return position, read_finite(self.items, np.array([position]), epoch)

            return in_one([self.log.first_good(position, read, self._after) for position in positions.tolist()])

    def label_runs(self) -> LabelRuns:
        """See LabelledBatches."""
        labels = getattr(self.items, "labels", None)
        if labels is None:
            raise ValueError(
                "the set has no attribute labels (N,), which new_centers=mean reads: set new_centers=random"
            )
        return LabelRuns.of_labels(class_labels(np.asarray(labels), "the set"))

    def read(self, positions: np.ndarray) -> tuple[Inputs, np.ndarray]:
        """See LabelledBatches; the items are those of epoch 0."""
        found, good = good_items(self.items, positions, self.log.skip)
        return None if found is None else found.inputs, good

    def _after(self, position: int) -> int:
        return (position + 1) % self.num_images

    def sample(self, count: int) -> Inputs:
        """See Batches; the items are those of epoch 0."""
        return self._checked(*first_items(self.items, count)).inputs

    def _checked(self, found: Batch, positions: np.ndarray) -> Batch:
        """Returns a batch of positions (B,) with labels of int64, if the set has read one."""
        labels, arrays = np.asarray(found[1]), arrays_of(found[0])
        fits = labels.shape == positions.shape and all(np.shape(array)[:1] == labels.shape for array in arrays.values())
        if not fits or labels.dtype.kind not in "iu":
            every = {**arrays, "labels": labels}
            shapes = {name: f"{array.dtype} {np.shape(array)}" for name, array in every.items()}
            raise ValueError(
                f"the set has read {shapes} at {plural(len(positions), 'position')}: each array must have an item for "
                "each of them, and labels are integers"
            )
        (wrong,) = np.nonzero((labels < 0) | (labels >= self.num_classes))
        if len(wrong):
            item, label = positions[wrong[0]], labels[wrong[0]]
            raise ValueError(f"item {item} of the set has label {label}, expected 0 to {self.num_classes - 1}")
        return Batch(found[0], labels.astype(np.int64, copy=False))

    def check_labels(self, num_classes: int) -> None:
        """Raises ValueError if the set has more classes."""
        if self.num_classes > num_classes:
            raise ValueError(
                f"the set has {self.num_classes} classes, but the network has {num_classes}: set "
                f"num_classes={self.num_classes}"
            )

    def close(self) -> None:
        """Closes the set."""
        self.items.close()


def read_finite(items: Items, positions: np.ndarray, epoch: int) -> Batch:
    """Returns ``items.read``. Raises ValueError for an item with a number that is not finite, too, and names it."""
    found = items.read(positions, epoch)
    for name, array in arrays_of(found[0]).items():
        numbers = np.asarray(array)
        if numbers.dtype.kind not in "fc" or np.isfinite(numbers).all() or numbers.shape[:1] != positions.shape:
            continue
        bad = positions[~np.isfinite(numbers).reshape(len(numbers), -1).all(axis=1)][0]
        item = items.describe(bad) if hasattr(items, "describe") else f"item {bad} of the set"
        raise ValueError(f"{item} has a number in {name} that is not finite: correct or remove it")
    return found


def first_items(items: Items, count: int) -> tuple[Batch, np.ndarray]:
    """Returns the first `count` good items, or all, of epoch 0, and their positions (n,).

    Raises:
        ValueError: all are bad, or they do not fit into one batch.
    """
    found: list[tuple[int, Batch]] = []
    for position in range(len(items)):
        try:
            found.append((position, read_finite(items, np.array([position]), 0)))
        except ValueError:
            if not found and position == len(items) - 1:
                raise
        if len(found) == count:
            break
    return in_one(found), np.array([position for position, _ in found])


def good_items(
    items: Items, positions: np.ndarray, on_bad: Callable[[int, ValueError], None]
) -> tuple[Batch | None, np.ndarray]:
    """Returns the good items at positions (P,), None if there is none, and which they are, (P,) bool."""
    found, good = [], np.ones(len(positions), bool)
    for row, position in enumerate(positions.tolist()):
        try:
            found.append((position, read_finite(items, np.array([position]), 0)))
        except ValueError as error:
            on_bad(position, error)
            good[row] = False
    return in_one(found) if found else None, good


def in_one(items: list[tuple[int, Batch]]) -> Batch:
    """Returns items, by position, in one batch. Raises ValueError, which names two, if they do not fit into one."""
    try:
        return joined([item for _, item in items])
    except (ValueError, KeyError):
        forms = [{name: np.shape(array)[1:] for name, array in arrays_of(inputs).items()} for _, (inputs, _) in items]
        for (position, _), form in zip(items, forms):
            if form != forms[0]:
                raise ValueError(
                    f"items {items[0][0]} and {position} of the set have the shapes {forms[0]} and {form}: read all "
                    "with one shape"
                ) from None
        raise
