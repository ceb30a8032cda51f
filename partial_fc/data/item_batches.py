"""The batches of one rank from a set that reads items by position; they resume at any number of ranks.

Shapes: N items, B local batch, R ranks, G = B*R global batch, C classes, P positions, n labels of an item.
"""

import hashlib
import time
from contextlib import suppress
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from partial_fc.utils.text import plural
from partial_fc.utils.user_code import errors_of

from .batch import Batch, Inputs, arrays_of, joined, map_inputs
from .label_runs import NO_LABEL, class_labels
from .order import draw_labels, epoch_entries
from .read_log import ReadCounters, ReadLog

DIGESTED = 1 << 16  # items hashed at a time
DIGESTED_INDICES = 1 << 12  # indices whose positions identify a set's own order


class Items(Protocol):
    """A set of N labelled items; ``len(items)`` is N. Several threads call ``read`` at the same time.

    An item has one label, or up to n; then labels are (..., n), and -1 stands for a missing label.

    These attributes are optional:

    - ``labels``, (N,) or (N, n) integers: the labels of all items, which ``new_centers=mean`` needs.
    - ``describe(position)``: names an item in messages.
    - ``without_augmentation``: the same set without augmentation, for samples and ``new_centers=mean``.
    - ``order_entries``: JSON entries for how the items were selected; a checkpoint resumes with equal entries only.
    - ``epoch_positions(indices, epoch, seed)``: the set's own order, instead of ``shuffle``. Returns the positions (P,)
      of the items at ``indices`` (P,), 0 .. N - 1, of an epoch; an epoch has N items, and may repeat or lack some. The
      result may depend on the arguments only, so that a resumed training reads the same items. Repeated items have
      the same augmentation within an epoch.
    - ``read_counted(positions, epoch)``: returns (batch, bytes, seconds): what ``read`` returns, and what reading took.
      By default, these are the bytes of the arrays and the seconds in which ``read`` did not compute.
    """

    @property
    def num_classes(self) -> int:
        """Number of classes in the set."""

    @property
    def digest(self) -> str:
        """Identifies the content, independent of its path; ranks whose digests differ are refused."""

    def __len__(self) -> int: ...

    def read(self, positions: np.ndarray, epoch: int) -> Batch:
        """Returns items at positions (P,) int64 and their labels, (P,) or (P, n) with the same n in all calls.

        An item may depend on (seed, epoch, position) only, not on the others that are read with it, so that a resumed
        training reads the same items. For random numbers, see partial_fc.data.order.uniform_draws.

        An item with a NaN or infinite number is bad.

        Raises:
            ValueError: an item is bad; the message names it. The items are then read one by one.
        """

    def close(self) -> None:
        """Closes the files."""


class ArrayItems:
    """Items in memory.

    Args:
        inputs: (N, ...), one array or several by name.
        labels: (N,) integers, or (N, n) with -1 for missing labels, or a list of up to n for each item.
        rows: (N,) integers, which rows of ``inputs`` (M, ...) are items; None for all. ``inputs`` are not copied, so
            that the ranks of a host can share a memory map.

    Raises:
        ValueError: the lengths differ, there is no item, or a label is not a class number.
    """

    def __init__(self, inputs: Inputs, labels: Any, rows: np.ndarray | None = None):
        arrays = arrays_of(inputs)
        for name, array in arrays.items():
            count = len(array if rows is None else rows)
            if count != len(labels):
                raise ValueError(f"{count} {name}, but {len(labels)} labels")
        self.inputs, self.labels, self.rows = inputs, class_labels(labels, "labels"), rows
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


class ItemBatches:
    """The batches of one rank, see Batches in training_data.py. Thread-safe.

    Args:
        items: the set, see Items.
        batch_size: B.
        shuffle: draw a new order in every epoch; without effect if the set has its own order.
        rank, size: this rank, and R.
        seed: of the order.
        skip_bad_items: number of bad items that may be replaced by the following one, see ReadLog.
        labels_per_item: number of labels drawn anew from each item in every epoch; 0 takes all.

    Attributes:
        num_images: N.
        items, batch_size, shuffle, rank, size, seed, labels_per_item: as above.
        log: the ReadLog.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        items: Items,
        batch_size: int,
        shuffle: bool = False,
        rank: int = 0,
        size: int = 1,
        seed: int = 0,
        skip_bad_items: int = 0,
        labels_per_item: int = 0,
    ):
        if not 0 <= rank < size:
            raise ValueError(f"rank {rank} is out of range for {plural(size, 'rank')}")
        if seed < 0:
            raise ValueError(f"seed must be >= 0, got {seed}")
        if batch_size <= 0:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if batch_size * size > len(items):
            raise ValueError(
                f"batch_size {batch_size} on {plural(size, 'rank')} needs {plural(batch_size * size, 'item')}, there "
                f"are {len(items)}: use a smaller batch or fewer ranks"
            )
        filtered = getattr(items, "order_entries", {}).get("images_filter")
        if filtered and hasattr(items, "epoch_positions"):
            raise ValueError(
                f"epoch_positions of the set orders all of its items, but min_images_per_class={filtered} leaves out "
                "some: set it to 0"
            )
        self.items, self.num_images, self.num_classes = items, len(items), items.num_classes
        self.batch_size, self.shuffle, self.rank, self.size, self.seed = batch_size, shuffle, rank, size, seed
        self.log, self.labels_per_item = ReadLog(skip_bad_items), labels_per_item
        self._without_augmentation: Items = getattr(items, "without_augmentation", items)

    @cached_property
    def digest(self) -> str:
        """See Batches; depends on the set's own order, so that ranks and resumed trainings with another are refused."""
        if not hasattr(self.items, "epoch_positions"):
            return self.items.digest
        indices = np.unique(np.linspace(0, self.num_images - 1, DIGESTED_INDICES).astype(np.int64))
        order = np.concatenate([self._positions(epoch, indices) for epoch in range(2)])
        return f"{self.items.digest}-{hashlib.sha256(order.tobytes()).hexdigest()[:16]}"

    @property
    def order(self) -> dict:
        """See Batches."""
        return {
            "data_set": self.digest,
            "num_images": self.num_images,
            **getattr(self.items, "order_entries", {}),
            "shuffle": self.shuffle,
            "seed": self.seed,
        }

    def batch(self, epoch: int, first: int) -> Batch:
        """See Batches."""
        _ = self._shape_in_set  # before the time is taken, because the first call reads an item
        start = time.perf_counter()
        indices = first + self.rank * self.batch_size + np.arange(self.batch_size)
        positions = self._positions(epoch, indices)
        batch, num_bytes, seconds = self._read(positions, epoch)
        batch = self._checked(batch, positions)
        if self.labels_per_item:
            labels = batch.labels.reshape(len(positions), -1)
            batch = Batch(batch.inputs, draw_labels(labels, self.labels_per_item, self.seed, epoch, positions))
        self.log.count(ReadCounters(self.batch_size, num_bytes, seconds, time.perf_counter() - start))
        return batch

    def _positions(self, epoch: int, indices: np.ndarray) -> np.ndarray:
        """Returns the positions (P,) int64 of the items at `indices` (P,) of the epoch's order."""
        own_order = getattr(self.items, "epoch_positions", None)
        if own_order is None:
            return epoch_entries(self.num_images, self.shuffle, self.seed, epoch, indices)
        with errors_of("epoch_positions of the set failed"):
            positions = np.asarray(own_order(indices, epoch, self.seed))
        fits = positions.shape == indices.shape and positions.dtype.kind in "iu"
        if not fits or positions.min() < 0 or positions.max() >= self.num_images:
            raise ValueError(
                f"epoch_positions of the set has returned {positions.dtype} of shape {positions.shape} for indices of "
                f"shape {indices.shape}, expected an integer from 0 to {self.num_images - 1} for each"
            )
        return positions.astype(np.int64)

    def _read(self, positions: np.ndarray, epoch: int) -> tuple[Batch, int, float]:
        """Returns the items at positions (P,), bad ones replaced by the following one; their bytes and seconds."""
        # Items are read together unless one is known to be bad. If that fails, reading one by one shows which.
        if not self.log.bad.keys() & positions.tolist():
            with suppress(ValueError):
                return read_counted(self.items, positions, epoch)

        def read_one(position: int) -> tuple[int, Batch, int, float]:
            return position, *read_counted(self.items, np.array([position]), epoch)

        def following(position: int) -> int:
            return (position + 1) % self.num_images

        read = [self.log.first_good(position, read_one, following) for position in positions.tolist()]
        return (
            collate([(position, batch) for position, batch, _, _ in read]),
            sum(num_bytes for _, _, num_bytes, _ in read),
            sum(seconds for _, _, _, seconds in read),
        )

    @property
    def label_shape(self) -> tuple[int, ...]:
        """See DataLoader."""
        return (self.labels_per_item,) if self.labels_per_item else self._shape_in_set

    @cached_property
    def _shape_in_set(self) -> tuple[int, ...]:
        """The shape of the labels of the first good item."""
        with suppress(ValueError):
            return np.shape(first_items(self._without_augmentation, 1)[0].labels)[1:]
        return ()  # reading a batch tells what is wrong

    def labels(self) -> np.ndarray:
        """Returns the labels (N,) or (N, n) int64 of all items. Raises ValueError if the set does not have them."""
        labels = getattr(self.items, "labels", None)
        if labels is None:
            raise ValueError("the set has no attribute labels, which new_centers=mean reads: set new_centers=random")
        return class_labels(labels, "the set")

    def read(self, positions: np.ndarray) -> tuple[Inputs | None, np.ndarray]:
        """Reads items without augmentation. Bad ones are counted as in a batch, and left out.

        Args:
            positions: (P,) int64.

        Returns:
            Inputs of the good items, None if there is none; (P,) bool, which items are good.

        Raises:
            ValueError: an item is bad, and no more may be skipped; the message names it.
        """
        good_items, good = [], np.ones(len(positions), bool)
        for row, position in enumerate(positions.tolist()):
            try:
                batch, _, _ = read_counted(self._without_augmentation, np.array([position]), 0)
                good_items.append((position, batch))
            except ValueError as error:
                self.log.skip(position, error)
                good[row] = False
        return collate(good_items).inputs if good_items else None, good

    def check_items(self, count: int) -> None:
        """Reads this rank's share of items that are spread over the set. Raises ValueError if one is bad, as `read`."""
        self.read(np.unique(np.linspace(0, self.num_images - 1, count).astype(int))[self.rank :: self.size])

    def sample(self, count: int) -> Inputs:
        """See Batches; items are read as in epoch 0."""
        return self._checked(*first_items(self._without_augmentation, count)).inputs

    def _checked(self, batch: Batch, positions: np.ndarray) -> Batch:
        """Returns the batch with int64 labels. Raises ValueError if it is not a batch of positions (P,)."""
        labels, arrays = np.asarray(batch[1]), arrays_of(batch[0])
        fits = all(np.shape(array)[:1] == positions.shape for array in (labels, *arrays.values()))
        if not fits or labels.ndim > 2 or labels.dtype.kind not in "iu":
            every = {**arrays, "labels": labels}
            shapes = {name: f"{array.dtype} {np.shape(array)}" for name, array in every.items()}
            raise ValueError(
                f"the set has read {shapes} at {plural(len(positions), 'position')}: each array must have an item for "
                "each of them, and labels are integers"
            )
        if labels.shape[1:] != self._shape_in_set:
            raise ValueError(
                f"the set has read labels {labels.shape[1:]} of each item, but {self._shape_in_set} of its first item: "
                f"use one shape, with {NO_LABEL} for the labels that an item lacks"
            )
        wrong = (labels < (0 if labels.ndim == 1 else NO_LABEL)) | (labels >= self.num_classes)
        if wrong.any():
            row, label = wrong.nonzero()[0][0], labels[wrong][0]
            raise ValueError(
                f"item {positions[row]} of the set has label {label}, expected 0 to {self.num_classes - 1}"
            )
        return Batch(batch[0], labels.astype(np.int64, copy=False))

    def check_labels(self, num_classes: int) -> None:
        """See Batches; names the first item whose label is not below `num_classes` if it can."""
        in_set, *_ = self._shape_in_set or (1,)
        if self.labels_per_item > in_set:
            raise ValueError(
                f"labels_per_item is {self.labels_per_item}, but the items of the set have {plural(in_set, 'label')}: "
                "set a smaller number, or 0 for all"
            )
        if self.num_classes <= num_classes:
            return
        what = f"the set has {self.num_classes} classes"
        if getattr(self.items, "labels", None) is not None:
            labels = self.labels()
            wrong = labels >= num_classes
            if not wrong.any():
                return  # the last classes have no items
            what = f"{describe(self.items, int(wrong.nonzero()[0][0]))} has label {labels[wrong][0]}"
        raise ValueError(f"{what}, but the network has {num_classes} classes: set num_classes={self.num_classes}")

    def close(self) -> None:
        """Closes the set."""
        self.items.close()


def read_counted(items: Items, positions: np.ndarray, epoch: int) -> tuple[Batch, int, float]:
    """Returns ``items.read``, the bytes read, and the seconds spent reading, see Items.

    Raises:
        ValueError: an item is bad, or has a number that is not finite; the message names it.
    """
    if hasattr(items, "read_counted"):
        counted: tuple[Batch, int, float] = items.read_counted(positions, epoch)
        return counted
    start, computing = time.perf_counter(), time.thread_time()
    batch, num_bytes = items.read(positions, epoch), 0
    for name, array in arrays_of(batch[0]).items():
        numbers = np.asarray(array)
        num_bytes += numbers.nbytes
        if numbers.dtype.kind not in "fc" or np.isfinite(numbers).all() or numbers.shape[:1] != positions.shape:
            continue
        bad = int(positions[~np.isfinite(numbers).reshape(len(numbers), -1).all(axis=1)][0])
        raise ValueError(f"{describe(items, bad)} has a number in {name} that is not finite: correct or remove it")
    # What the thread's processor time does not explain: waiting for files, another process, or the interpreter's lock.
    waiting = time.perf_counter() - start - (time.thread_time() - computing)
    return batch, num_bytes, max(0.0, waiting)


def describe(items: Items, position: int) -> str:
    """Names an item in messages."""
    named: str = items.describe(position) if hasattr(items, "describe") else f"item {position} of the set"
    return named


def first_items(items: Items, count: int) -> tuple[Batch, np.ndarray]:
    """Returns the first good items, at most `count`, as read in epoch 0, and their positions (P,).

    Raises:
        ValueError: all items are bad (names the first one), or they do not fit into one batch.
    """
    good_items: list[tuple[int, Batch]] = []
    first_error = None
    for position in range(len(items)):
        try:
            good_items.append((position, read_counted(items, np.array([position]), 0)[0]))
        except ValueError as error:
            first_error = first_error or error
        if len(good_items) == count:
            break
    if not good_items and first_error is not None:
        raise first_error
    return collate(good_items), np.array([position for position, _ in good_items])


def collate(items: list[tuple[int, Batch]]) -> Batch:
    """Joins (position, item) pairs into a batch. Raises ValueError, which names two, if their shapes differ."""
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
