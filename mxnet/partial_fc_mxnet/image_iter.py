"""Data iterators: face sets in RecordIO files, and dummy batches that cost nothing.

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

AHEAD = 2  # batches kept ready beyond those in the making


class FaceImageIter(mx.io.DataIter):
    """The images of `path_imgrec` (its .idx beside it), the part of rank `context` out of `context_num`.

    Batches hold images (B, 3, H, W) float32 RGB 0..255 and labels (B,) int64. They are read, decoded and augmented
    ahead of time, over the end of the epoch too, by threads of the iterator's own.

    data_shape: (3, H, W), the size that the images have.
    shuffle: a new order each epoch, from (seed, epoch), that all ranks share.
    rand_mirror, cutoff, color_jittering, jpeg_compression: see partial_fc.data.transforms.Augmentation.
    images_filter: leave out identities with fewer images than that; class labels stay as they are.
    skip_bad_images: so many bad images are replaced by their neighbours, with a warning, before one is an error.
    threads: that decode; 0 for as many as the process may use cores, 8 at most.

    `num_images` is that of an epoch of all ranks, `num_classes` the number of identities in the file, `threads` the
    number in use; `counters` tells what reading has cost (ReadCounters). `check_labels(C)` raises ValueError naming the
    record whose label does not fit. Raises OSError or ValueError, naming file and mend, for files and sizes that cannot
    be, and in `next` for a bad image, naming file, key and offset.
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
        self._given: deque = deque()
        pool = RecyclingPool((batch_size, *data_shape), np.float32)
        load = partial(load_batch, self._faces, pool, self._given)
        self._prefetcher = Prefetcher(load, self.cursor.successor, self.threads, self.threads + AHEAD)

    @property
    def counters(self) -> ReadCounters:
        """What reading has cost since the iterator was made."""
        return self._faces.counters

    @property
    def skipped(self) -> int:
        """Bad images that this rank has passed over so far."""
        return len(self._faces.bad_images)

    @property
    def digest(self) -> str:
        """Tells the set from others, wherever it lies; see RecordReader.digest."""
        return self._faces.records.digest

    def sample(self, count: int) -> np.ndarray:
        """(count, H, W, 3) uint8 RGB: the first images of the set, as they are; fewer where some are damaged."""
        return self._faces.sample(count)

    def reset(self) -> None:
        """Start the next epoch; before the first batch of an epoch this changes nothing."""
        self.cursor.reset()

    def next(self) -> mx.io.DataBatch:
        """The next batch. Raises StopIteration at the end of the epoch, on all ranks after the same batch."""
        arrays = self._prefetcher.get(self.cursor.current())
        self.cursor.advance()
        self._given.append(arrays)
        return data_batch(*arrays)

    def state(self) -> dict:
        """The place in the data, as integers and booleans: `epoch`, and `images` that all ranks together have been
        given of its order; the rest names the order. What has been read ahead does not count. While fit trains it has
        taken one batch more than it has trained on: its `data_state` is the place to save.
        """
        return {**self.cursor.state(), **self._order()}

    def restore(self, state: dict) -> None:
        """Go on where `state` was taken, at any number of ranks and any batch size.

        Raises ValueError if it was taken in another order: another set, seed, shuffle or images_filter.
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
        """End the threads and close the file; a second call does nothing."""
        self._prefetcher.close()
        self._faces.records.close()


def load_batch(faces: FaceBatches, pool: RecyclingPool, given: deque, place: Place) -> Arrays:
    """Images (B, 3, H, W) float32 and labels (B,) int64 of the batch at `place`; runs in the reader's threads.

    `given` holds the batches that the iterator has handed out. All but two are let go of here and not by whoever took
    them: freeing an array hands the interpreter to another thread, and where all cores are busy it takes milliseconds
    to get it back. Measured as waiting for data, that was 5 % of a step of 50 ms, and is 0.3 % now.
    """
    with suppress(IndexError):  # of another thread that has been faster
        while len(given) > 2:
            given.popleft()
    images, labels = faces.batch(*place)
    data = pool.take()
    np.copyto(data, images)
    return mx.nd.from_numpy(data), host_array(labels)


class DummyIter(mx.io.DataIter):
    """The same random images in every batch, labels over all classes, different in each batch and on each rank.

    What a step costs without reading: comparing its speed with FaceImageIter's shows whether IO is the bottleneck.
    After `reset` the same batches come again. `rank` and `size` are this rank's number and how many there are.
    """

    skipped, digest = 0, "dummy images"  # as FaceImageIter has it

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
        """(0, H, W, 3) uint8: there are no faces."""
        return np.empty((0, *self.provide_data[0].shape[2:], 3), np.uint8)

    def reset(self) -> None:
        """Start again with the first batch."""
        self.cursor.reset()

    def next(self) -> mx.io.DataBatch:
        """The next batch. Raises StopIteration after `batches` of them."""
        number = self.cursor.current()[1] // self.cursor.global_batch
        self.cursor.advance()
        # The constant keeps this stream apart from the draw of negatives, which is seeded by (seed, rank) too.
        labels = np.random.default_rng((*self._key, 0xD0, number)).integers(0, self.num_classes, self.batch_size)
        return data_batch(self._data, host_array(labels))

    def state(self) -> dict:
        """The place: epoch, and images of all ranks together."""
        return self.cursor.state()

    def restore(self, state: dict) -> None:
        """Go on where `state` was taken."""
        self.cursor.restore(state, {})


def descriptions(batch_size: int, data_shape: tuple) -> tuple[list, list]:
    """What a batch holds: data (B, 3, H, W) float32 and label (B,) int64."""
    data = mx.io.DataDesc("data", (batch_size, *data_shape), np.float32)
    return [data], [mx.io.DataDesc("softmax_label", (batch_size,), np.int64)]


def data_batch(data: mx.nd.NDArray, labels: mx.nd.NDArray) -> mx.io.DataBatch:
    """A DataBatch whose labels stay integers: float32 has no 16,777,217."""
    return mx.io.DataBatch([data], [labels], 0)


def check_shape(data_shape: tuple) -> tuple[int, int]:
    """(H, W) of data_shape (3, H, W). Raises ValueError for another form."""
    if len(data_shape) != 3 or data_shape[0] != 3 or min(data_shape) <= 0:
        raise ValueError(f"data_shape must be (3, height, width), got {tuple(data_shape)}")
    return data_shape[1], data_shape[2]
