"""Data iterators: face sets in RecordIO files, and dummy batches without reading.

Shapes: B local batch, R ranks, H, W image size, C classes.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from functools import partial

import mxnet as mx
import numpy as np

from partial_fc.data.batch_loader import FaceBatches, ReadCounters
from partial_fc.data.buffer_pool import RecyclingPool
from partial_fc.data.cursor import Cursor, Place
from partial_fc.data.prefetch import Prefetcher
from partial_fc.data.transforms import Augmentation
from partial_fc.distributed.env import decode_threads

from .ops.host_memory import host_array

Arrays = tuple[mx.nd.NDArray, mx.nd.NDArray]

AHEAD = 2  # decoded batches that wait, beyond one per thread in progress


class FaceImageIter(mx.io.DataIter):
    """Iterates over the share of one rank in the images of a RecordIO file.

    Batches hold images (B, 3, H, W) float32 RGB 0..255 and labels (B,) int64. Threads of the iterator read, decode and
    augment them in advance, across the end of an epoch as well.

    Args:
        batch_size: B.
        data_shape: (3, H, W) of the images in the file.
        path_imgrec: Path of the ``.rec`` file; the ``.idx`` file must be beside it.
        shuffle: Whether each epoch has a new order, computed from (seed, epoch) and the same on all ranks.
        rand_mirror, cutoff, color_jittering: See partial_fc.data.transforms.Augmentation.
        images_filter: Skips identities with fewer images than this; class labels do not change.
        context: Rank of this process.
        context_num: R.
        seed: Seed of order and augmentation.
        jpeg_compression: See Augmentation.
        skip_bad_images: Number of bad images that are replaced by their neighbors, with a warning, before the next one
            is an error.
        threads: Number of decoding threads; 0 for one per core of this process, at most 8.

    Attributes:
        num_images: Number of images in an epoch of all ranks.
        num_classes: Number of identities in the file.
        threads: Number of decoding threads in use.
        cursor: Position in the data, of the batches handed out.
        check_labels: ``check_labels(C)`` raises ValueError naming the first record whose label is not below C.

    Raises:
        OSError: A file is missing or cannot be read.
        ValueError: A file or an argument is invalid. In ``next``: an image is bad; names file, key and offset.
    """

    def __init__(
        self,
        batch_size: int,
        data_shape: tuple,
        path_imgrec: str,
        shuffle: bool = False,
        rand_mirror: bool = False,
        cutoff: int = 0,
        color_jittering: float = 0,
        images_filter: int = 0,
        context: int = 0,
        context_num: int = 1,
        seed: int = 0,
        jpeg_compression: int = 0,
        skip_bad_images: int = 0,
        threads: int = 0,
    ):
        height, width = check_shape(data_shape)
        if threads < 0:
            raise ValueError(f"threads must be at least 1, or 0 for an automatic choice, got {threads}")
        self._faces = FaceBatches(
            path_imgrec,
            batch_size,
            (height, width),
            shuffle=shuffle,
            augmentation=Augmentation(rand_mirror, cutoff, color_jittering, jpeg_compression),
            images_filter=images_filter,
            skip_bad_images=skip_bad_images,
            rank=context,
            size=context_num,
            seed=seed,
        )
        super().__init__(batch_size)
        self.provide_data, self.provide_label = descriptions(batch_size, data_shape)
        self.num_images, self.num_classes = self._faces.num_images, self._faces.records.num_identities
        self.check_labels = self._faces.records.check_labels
        self.threads = threads or decode_threads(local_size=1)
        self.cursor = Cursor(self.num_images, batch_size * context_num)
        self._handed_out: deque = deque()
        pool = RecyclingPool((batch_size, *data_shape), np.float32)
        load = partial(load_batch, self._faces, pool, self._handed_out)
        self._prefetcher = Prefetcher(load, self.cursor.successor, self.threads, self.threads + AHEAD)

    @property
    def counters(self) -> ReadCounters:
        """Bytes and seconds spent on reading since the iterator was created."""
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

    def reset(self) -> None:
        """Starts the next epoch; before the first batch of an epoch it does nothing."""
        self.cursor.reset()

    def next(self) -> mx.io.DataBatch:
        """Returns the next batch.

        Raises:
            StopIteration: At the end of the epoch, on all ranks after the same number of batches.
        """
        arrays = self._prefetcher.get(self.cursor.current())
        self.cursor.advance()
        self._handed_out.append(arrays)
        return data_batch(*arrays)

    def state(self) -> dict:
        """Returns the position in the data, as JSON.

        ``epoch``, and ``images``: how many images of its order were handed out to all ranks together, without those
        read in advance. All other keys identify the order. SampleDistributeModule.fit takes one batch more than it has
        trained on, so save its ``data_state`` instead.
        """
        return {**self.cursor.state(), **self._order()}

    def restore(self, state: dict) -> None:
        """Continues at a position that :meth:`state` returned, at any number of ranks and any batch size.

        Raises:
            ValueError: The order was another one: another set, seed, shuffle or images_filter.
        """
        self.cursor.restore(state, self._order())

    def _order(self) -> dict:
        faces = self._faces
        return {
            "data_set": faces.records.digest,
            "num_images": self.num_images,
            "images_filter": faces.images_filter,
            "shuffle": faces.shuffle,
            "seed": faces.seed,
        }

    def close(self) -> None:
        """Stops the threads and closes the file; a second call does nothing."""
        self._prefetcher.close()
        self._faces.records.close()


def load_batch(faces: FaceBatches, pool: RecyclingPool, handed_out: deque, place: Place) -> Arrays:
    """Reads the batch at a position; runs in the iterator's threads.

    Releases all but the last two batches that the iterator has handed out. The training thread must not do that: it
    gives up the interpreter lock when it frees an array, and on busy cores it takes milliseconds to get the lock back
    (5 % of a step of 50 ms, now 0.3 %).

    Returns:
        (images (B, 3, H, W) float32, labels (B,) int64).
    """
    with suppress(IndexError):  # another thread was faster
        while len(handed_out) > 2:
            handed_out.popleft()
    images, labels = faces.batch(*place)
    data = pool.take()
    np.copyto(data, images)
    return mx.nd.from_numpy(data), host_array(labels)


class DummyIter(mx.io.DataIter):
    """Iterates over batches that cost nothing to read.

    All batches share one array of random images. Labels are spread over all classes and differ between batches and
    ranks. Compare its speed with that of FaceImageIter to see whether reading limits training. After ``reset`` the same
    batches follow.

    Args:
        batch_size: B.
        data_shape: (3, H, W).
        batches: Number of batches in an epoch.
        num_classes: C.
        seed: Seed of images and labels.
        rank: Rank of this process.
        size: R.

    Raises:
        ValueError: An argument is out of range.
    """

    skipped, digest = 0, "dummy images"  # see FaceImageIter

    def __init__(
        self,
        batch_size: int,
        data_shape: tuple,
        batches: int,
        num_classes: int = 10000,
        seed: int = 0,
        rank: int = 0,
        size: int = 1,
    ):
        check_shape(data_shape)
        for name, value in (("batch_size", batch_size), ("batches", batches), ("num_classes", num_classes)):
            if value <= 0:
                raise ValueError(f"{name} must be at least 1, got {value}")
        super().__init__(batch_size)
        self.provide_data, self.provide_label = descriptions(batch_size, data_shape)
        self.cursor = Cursor(batches * batch_size * size, batch_size * size)
        self.num_classes, self._key = num_classes, (seed, rank)
        pixels = np.random.default_rng(self._key).integers(0, 256, (batch_size, *data_shape), dtype=np.uint8)
        self._data = mx.nd.array(pixels, dtype="float32")

    def sample(self, count: int) -> np.ndarray:
        """Returns an empty array (0, H, W, 3) uint8, as there are no faces."""
        return np.empty((0, *self.provide_data[0].shape[2:], 3), np.uint8)

    def reset(self) -> None:
        """Starts again with the first batch."""
        self.cursor.reset()

    def next(self) -> mx.io.DataBatch:
        """Returns the next batch.

        Raises:
            StopIteration: At the end of the epoch.
        """
        number = self.cursor.current()[1] // self.cursor.global_batch
        self.cursor.advance()
        # The constant separates this stream from that of the negative classes, which is seeded by (seed, rank) too.
        labels = np.random.default_rng((*self._key, 0xD0, number)).integers(0, self.num_classes, (self.batch_size,))
        return data_batch(self._data, host_array(labels))

    def state(self) -> dict:
        """Returns the epoch and the number of images handed out to all ranks together."""
        return self.cursor.state()

    def restore(self, state: dict) -> None:
        """Continues at a position that :meth:`state` returned."""
        self.cursor.restore(state, {})


def descriptions(batch_size: int, data_shape: tuple) -> tuple[list, list]:
    """Returns (provide_data, provide_label): data (B, 3, H, W) float32 and label (B,) int64."""
    data = mx.io.DataDesc("data", (batch_size, *data_shape), np.float32)
    return [data], [mx.io.DataDesc("softmax_label", (batch_size,), np.int64)]


def data_batch(data: mx.nd.NDArray, labels: mx.nd.NDArray) -> mx.io.DataBatch:
    """Returns a DataBatch with integer labels, as float32 cannot represent 16,777,217."""
    return mx.io.DataBatch([data], [labels], 0)


def check_shape(data_shape: tuple) -> tuple[int, int]:
    """Returns (H, W) of a data_shape (3, H, W).

    Raises:
        ValueError: It has another form.
    """
    if len(data_shape) != 3 or data_shape[0] != 3 or min(data_shape) <= 0:
        raise ValueError(f"data_shape must be (3, height, width), got {tuple(data_shape)}")
    return data_shape[1], data_shape[2]
