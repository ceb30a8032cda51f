"""The training data of one rank as an iterator over batches, with a position that can be saved.

The trainers convert the arrays of a batch to those of their framework.

Shapes: N items of an epoch, B local batch, R ranks, G = B*R global batch, C classes.
"""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from . import batch
from .batch import Inputs
from .class_images import AHEAD, ClassImages
from .cursor import Cursor, Position
from .item_batches import ItemBatches
from .label_runs import each_label
from .prefetch import Prefetcher
from .read_log import ReadCounters, ReadLog

Batch = TypeVar("Batch")

DUMMY_BATCHES = 100  # batches of an epoch of DummyData, so that their labels spread over the classes


class BatchIterator(Generic[Batch]):
    """An iterator with the method ``next``, as in MXNet.

    Attributes:
        cursor: the position in the data after the last batch that ``next`` has returned.
    """

    cursor: Cursor

    def next(self) -> Batch:
        """Returns the next batch.

        Raises:
            StopIteration: at the end of the epoch, after the same number of batches on all ranks.
        """
        batch = self._batch_at(self.cursor.current())
        self.cursor.advance()
        return batch

    def _batch_at(self, position: Position) -> Batch:
        raise NotImplementedError

    def __iter__(self):
        return self

    def __next__(self) -> Batch:
        return self.next()

    def reset(self) -> None:
        """Starts the next epoch; does nothing before the first batch of an epoch."""
        self.cursor.reset()

    def state(self) -> dict:
        """Returns the position in the data, as JSON.

        ``images`` is the number of images of this ``epoch`` that ``next`` has returned on all ranks together. The other
        keys identify the order. The training loop takes a batch before it trains on it, so save the ``data_state`` of
        its LoopState instead.
        """
        return {**self.cursor.state(), **self._order()}

    def restore(self, state: dict) -> None:
        """Continues at a position that `state` has returned, with any number of ranks and any batch size.

        Raises:
            ValueError: the order has changed: another set, seed, shuffle or min_images_per_class.
        """
        self.cursor.restore(state, self._order())

    def _order(self) -> dict:
        return {}

    def close(self) -> None:
        """Stops reading; a second call does nothing."""


class Batches(Protocol):
    """The share of one rank in a training set: ItemBatches, or another source. Thread-safe.

    A batch does not depend on what was read before it.

    Attributes:
        num_images: N, the number of items in an epoch.
        batch_size, size: B and R.
        log: the ReadLog of this rank.
    """

    num_images: int
    batch_size: int
    size: int
    log: ReadLog

    @property
    def digest(self) -> str:
        """Identifies the content of the set, independent of its path."""

    @property
    def order(self) -> dict:
        """What the order of the items depends on, as JSON; a checkpoint resumes with the same order only."""

    def batch(self, epoch: int, first: int) -> batch.Batch:
        """Reads this rank's part of the global batch that begins at ``first`` (0 .. N - G) of the epoch's order.

        Raises:
            ValueError: an item is bad; the message names it.
        """

    def sample(self, count: int) -> Inputs:
        """Returns the first ``count`` good items of the set without augmentation, or all if there are fewer."""

    def check_labels(self, num_classes: int) -> None:
        """Raises ValueError if a label is not below ``num_classes``, or items have too few labels to draw from."""

    def close(self) -> None:
        """Closes the files."""


class DataLoader(BatchIterator[Batch]):
    """The share of one rank in a training set; threads read ahead, also across the end of an epoch.

    Args:
        batches: the share.
        threads: number of threads.
        load: position -> batch of a framework; called in the threads.

    Attributes:
        batches, threads: as above.

    Raises, in ``next``:
        ValueError: an item is bad; the message names it, for example by file, key and offset.
    """

    def __init__(self, batches: Batches, threads: int, load: Callable[[Position], Batch]):
        self.batches, self.threads = batches, threads
        self.cursor = Cursor(batches.num_images, batches.batch_size * batches.size)
        self._prefetcher = Prefetcher(load, self.cursor.successor, threads, threads + AHEAD)

    @property
    def counters(self) -> ReadCounters:
        """What was read so far, and how long it took."""
        return self.batches.log.counters

    @property
    def skipped(self) -> int:
        """Number of bad items that this rank has skipped so far."""
        return len(self.batches.log.bad)

    @property
    def digest(self) -> str:
        """Identifies the content of the set, independent of its path."""
        return self.batches.digest

    @property
    def classes_of_set(self) -> int | None:
        """Number of classes in the set; None if it is unknown."""
        return getattr(self._local, "num_classes", None)

    @property
    def label_shape(self) -> tuple[int, ...]:
        """Shape of an item's labels in a batch: () if items have one label each, else (n,)."""
        shape: tuple[int, ...] = getattr(self._local, "label_shape", ())
        return shape

    @property
    def _local(self) -> Any:
        """The batches that this process has opened, even if worker processes read them."""
        return getattr(self.batches, "local", self.batches)

    def sample(self, count: int) -> Inputs:
        """See Batches."""
        return self.batches.sample(count)

    def class_images(self) -> ClassImages:
        """Returns the items of the whole set by class, see ClassImages. Raises ValueError if it has no labels."""
        batches = self._local
        if not isinstance(batches, ItemBatches):
            raise ValueError("new_centers=mean needs the labels of all items: set new_centers=random")
        return ClassImages(batches, self.threads)

    def class_counts(self, num_classes: int) -> np.ndarray:
        """Returns the number of items of each class (C,) int64. Raises ValueError if the set has no labels."""
        labels = getattr(self._local, "labels", None)
        if labels is None:
            raise ValueError("sampling=frequency needs the labels of all items: set sampling to a .npy file of weights")
        return np.bincount(each_label(labels())[1], minlength=num_classes)

    def _batch_at(self, position: Position) -> Batch:
        return self._prefetcher.get(position)

    def _order(self) -> dict:
        return self.batches.order

    def close(self) -> None:
        """Stops threads and processes, and closes the files unless a thread is still reading after 5 s."""
        if hasattr(self.batches, "end_workers"):  # otherwise the threads could wait for workers
            self.batches.end_workers()
        if self._prefetcher.close():
            self.batches.close()


class DummyData(BatchIterator[Batch]):
    """Batches that cost nothing to read: the same inputs in every batch, with random labels of all classes.

    Labels differ between batches and ranks, and are the same in every epoch. If training is faster with DummyData than
    with DataLoader, reading is the bottleneck.

    Args:
        inputs: (B, ...), of every batch.
        make_batch: labels (B, *label_shape) int64 -> batch.
        batches: number of batches in an epoch.
        num_classes: C.
        seed: of the labels.
        rank: rank of this process.
        label_shape: see DataLoader.

    Attributes:
        inputs, label_shape: as above.
        cursor: counts batches instead of items, so that it is valid at any number of ranks and any batch size.

    Raises:
        ValueError: an argument is out of range.
    """

    digest, skipped, threads, counters = "dummy images", 0, 1, ReadCounters()  # see DataLoader

    def __init__(
        self,
        inputs: Inputs,
        make_batch: Callable[[np.ndarray], Batch],
        batches: int,
        num_classes: int,
        seed: int,
        rank: int,
        label_shape: tuple[int, ...] = (),
    ):
        self.inputs, self.batch_size, self.num_classes = inputs, batch.num_items(inputs), num_classes
        for name, value in (("batch_size", self.batch_size), ("batches", batches), ("num_classes", num_classes)):
            if value <= 0:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.cursor = Cursor(batches, 1)
        self._key, self._make_batch = (seed, rank), make_batch
        self.label_shape = label_shape

    def sample(self, count: int) -> Inputs:
        """Returns the first of the inputs."""
        return batch.map_inputs(lambda array: array[:count], self.inputs)

    def _batch_at(self, position: Position) -> Batch:
        # Without the constant, this would be the stream of the negative classes, which is seeded by (seed, rank), too.
        random = np.random.default_rng((*self._key, 0xD0, position[1]))
        return self._make_batch(random.integers(0, self.num_classes, (self.batch_size, *self.label_shape)))


TrainingData = DataLoader[Any] | DummyData[Any]
