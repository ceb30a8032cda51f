"""The training data of one rank as an iterator over batches, with a position that can be saved.

The frameworks turn the arrays of a batch into their own.

Shapes: N images of an epoch, B local batch, R ranks, G = B*R global batch, H, W image size, C classes.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from .batch_loader import FaceBatches, ReadCounters
from .class_images import AHEAD, ClassImages
from .cursor import Cursor, Position
from .prefetch import Prefetcher

Batch = TypeVar("Batch")

DUMMY_BATCHES = 100  # of an epoch of DummyData: their labels spread over the classes


class BatchIterator(Generic[Batch]):
    """An iterator with the method ``next``, as MXNet's have it.

    Attributes:
        cursor: position in the data, of the batches handed out.
    """

    cursor: Cursor

    def next(self) -> Batch:
        """Returns the next batch.

        Raises:
            StopIteration: at the end of the epoch, on all ranks after the same number of batches.
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
        """Starts the next epoch; before the first batch of an epoch it does nothing."""
        self.cursor.reset()

    def state(self) -> dict:
        """Returns the position in the data, as JSON.

        ``epoch``, and ``images``: how many images of its order were handed out to all ranks together, without those
        read in advance. All other keys identify the order. The training loop takes one batch more than it has trained
        on, so save the ``data_state`` of its LoopState instead.
        """
        return {**self.cursor.state(), **self._order()}

    def restore(self, state: dict) -> None:
        """Continues at a position that `state` returned, at any number of ranks and any batch size.

        Raises:
            ValueError: the order was another one: another set, seed, shuffle or min_images_per_class.
        """
        self.cursor.restore(state, self._order())

    def _order(self) -> dict:
        return {}

    def close(self) -> None:
        """Ends the reading; a second call does nothing."""


class DataLoader(BatchIterator[Batch]):
    """The share of one rank in a face set; threads read, decode and augment in advance, also across epochs.

    Args:
        faces: the set, and which share of it.
        threads: number of decoding threads.
        load: position -> batch; called in the threads.

    Attributes:
        num_images: N.
        num_classes: number of identities in the set.
        threads: as above.
        check_labels: ``check_labels(C)`` raises ValueError naming the first record whose label is not below C.

    Raises, in ``next``:
        ValueError: an image is bad; names file, key and offset.
    """

    def __init__(self, faces: FaceBatches, threads: int, load: Callable[[Position], Batch]):
        self._faces = faces
        self.num_images, self.num_classes = faces.num_images, faces.records.num_identities
        self.check_labels = faces.records.check_labels
        self.threads = threads
        self.cursor = Cursor(self.num_images, faces.batch_size * faces.size)
        self._prefetcher = Prefetcher(load, self.cursor.successor, threads, threads + AHEAD)

    @property
    def counters(self) -> ReadCounters:
        """Bytes and seconds spent on reading since the object was created."""
        return self._faces.counters

    @property
    def skipped(self) -> int:
        """Number of bad images that this rank has skipped so far."""
        return len(self._faces.bad_images)

    @property
    def digest(self) -> str:
        """Identifies the content of the set, independent of its path; see RecordReader.digest."""
        return self._faces.records.digest

    def sample(self, count: int) -> np.ndarray:
        """Returns the first images, not augmented, as (count, H, W, 3) uint8 RGB; fewer if some are bad."""
        return self._faces.sample(count)

    def class_images(self) -> ClassImages:
        """Returns the images of the whole set by class, see ClassImages."""
        return ClassImages(self._faces, self.threads)

    def _batch_at(self, position: Position) -> Batch:
        return self._prefetcher.get(position)

    def _order(self) -> dict:
        faces = self._faces
        return {
            "data_set": faces.records.digest,
            "num_images": self.num_images,
            "images_filter": faces.min_images_per_class,
            "shuffle": faces.shuffle,
            "seed": faces.seed,
        }

    def close(self) -> None:
        """Stops the threads and closes the file; a second call does nothing."""
        self._prefetcher.close()
        self._faces.records.close()


class DummyData(BatchIterator[Batch]):
    """Batches that cost nothing to read: random images, the same in every batch, with labels from all classes.

    Labels differ between batches and ranks. Compare its speed with that of DataLoader to see whether reading limits
    training. After ``reset`` the same batches follow.

    Args:
        shape: (B, 3, H, W).
        batches: number of batches in an epoch.
        num_classes: C.
        seed: of images and labels.
        rank: rank of this process.
        make_batch: labels (B,) int64 -> batch.

    Attributes:
        pixels: (B, 3, H, W) uint8, the images of every batch.
        cursor: as above, but in batches instead of images: it holds for any number of ranks and any batch size.

    Raises:
        ValueError: an argument is out of range.
    """

    digest, skipped, threads, counters = "dummy images", 0, 1, ReadCounters()  # see DataLoader

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        batches: int,
        num_classes: int,
        seed: int,
        rank: int,
        make_batch: Callable[[np.ndarray], Batch],
    ):
        batch_size = shape[0]
        for name, value in (("batch_size", batch_size), ("batches", batches), ("num_classes", num_classes)):
            if value <= 0:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.batch_size, self.num_classes = batch_size, num_classes
        self.cursor = Cursor(batches, 1)
        self._key, self._make_batch = (seed, rank), make_batch
        self.pixels = np.random.default_rng(self._key).integers(0, 256, shape, dtype=np.uint8)

    def sample(self, count: int) -> np.ndarray:
        """Returns an empty array (0, H, W, 3) uint8, as there are no faces."""
        return np.empty((0, *self.pixels.shape[2:], 3), np.uint8)

    def _batch_at(self, position: Position) -> Batch:
        # The constant separates this stream from that of the negative classes, which is seeded by (seed, rank) too.
        random = np.random.default_rng((*self._key, 0xD0, position[1]))
        return self._make_batch(random.integers(0, self.num_classes, (self.batch_size,)))
