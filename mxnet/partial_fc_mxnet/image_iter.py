"""Data iterators: image sets, face sets in RecordIO files, and dummy batches that need no files.

Shapes: B local batch, R ranks, H, W image size, C classes.
"""

from collections import deque
from contextlib import suppress
from functools import partial

import mxnet as mx
import numpy as np

from partial_fc.data.buffer_pool import RecyclingPool
from partial_fc.data.cursor import Position
from partial_fc.data.face_items import FaceItems
from partial_fc.data.item_batches import ItemBatches
from partial_fc.data.training_data import Batches, DataLoader, DummyData
from partial_fc.data.transforms import Augmentation
from partial_fc.distributed.env import decode_threads

from .ops.memory import host_array

Arrays = tuple[mx.nd.NDArray, mx.nd.NDArray]


class ImageIter(DataLoader[Arrays], mx.io.DataIter):
    """Iterates over one rank's share of a set of images.

    Batches hold images (B, 3, H, W) float32 RGB 0..255 and labels (B,) int64. The iterator's threads read ahead, also
    across the end of an epoch.

    Args:
        batches: The set; its inputs are images (B, 3, H, W) uint8.
        threads: Number of threads.

    Attributes:
        provide_data, provide_label: Descriptions of the arrays, as in any MXNet iterator.
        cursor and others: See partial_fc.data.training_data.DataLoader.
    """

    def __init__(self, batches: Batches, threads: int):
        shape = batches.batch_size, *batches.sample(1).shape[1:]
        mx.io.DataIter.__init__(self, batches.batch_size)
        self.provide_data, self.provide_label = descriptions(shape)
        self._handed_out: deque = deque()
        load = partial(load_batch, batches, RecyclingPool(shape, np.float32), self._handed_out)
        DataLoader.__init__(self, batches, threads, load)

    def next(self) -> mx.io.DataBatch:
        """Returns the next batch.

        Raises:
            StopIteration: At the end of the epoch, on all ranks after the same number of batches.
        """
        arrays = super().next()
        self._handed_out.append(arrays)
        return mx.io.DataBatch([arrays[0]], [arrays[1]], 0)


class FaceImageIter(ImageIter):
    """Iterates over one rank's share of the images of a RecordIO file, see ImageIter.

    Args:
        batch_size: B.
        data_shape: (3, H, W) of the images in the file.
        path_imgrec: Path of the ``.rec`` file; the ``.idx`` file must be in the same folder.
        shuffle: Whether each epoch has a new order, which depends on (seed, epoch) and is the same on all ranks.
        rand_mirror, cutoff, color_jittering: See partial_fc.data.transforms.Augmentation.
        images_filter: Skips identities with fewer images than this; class labels do not change.
        context: Rank of this process.
        context_num: R.
        seed: Seed of order and augmentation.
        jpeg_compression: See Augmentation.
        skip_bad_images: Number of bad images to replace by their neighbors, with a warning; one more is an error.
        threads: Number of decoding threads; 0 for one per core of this process, at most 8.

    Attributes:
        num_images, num_classes, check_labels: See partial_fc.data.training_data.Batches.

    Raises:
        OSError: A file is missing or cannot be read.
        ValueError: A file or an argument is invalid. In ``next``: an image is bad; the error has file, key and offset.
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
        augmentation = Augmentation(rand_mirror, cutoff, color_jittering, jpeg_compression)
        items = FaceItems(path_imgrec, (height, width), augmentation, images_filter, seed)
        faces = ItemBatches(items, batch_size, shuffle, context, context_num, seed, skip_bad_images)
        super().__init__(faces, threads or decode_threads(local_size=1))
        self.num_images, self.num_classes = faces.num_images, faces.num_classes
        self.check_labels = faces.check_labels


def load_batch(batches: Batches, pool: RecyclingPool, handed_out: deque, position: Position) -> Arrays:
    """Reads images (B, 3, H, W) float32 and labels (B,) int64 at a position; runs in the iterator's threads.

    Releases all but the last two batches that the iterator has handed out. The training thread must not release them:
    freeing an array gives up the interpreter lock, and on busy cores it takes milliseconds to get the lock back (5 % of
    a step of 50 ms; 0.3 % when these threads do it).
    """
    with suppress(IndexError):  # another thread was faster
        while len(handed_out) > 2:
            handed_out.popleft()
    images, labels = batches.batch(*position)
    data = pool.take()
    np.copyto(data, images)
    return mx.nd.from_numpy(data), host_array(labels)


class DummyImages(DummyData[mx.io.DataBatch], mx.io.DataIter):
    """Iterates over batches in memory, see partial_fc.data.training_data.DummyData.

    Args:
        images: (B, 3, H, W) uint8.
        batches, num_classes, seed, rank: See DummyData.
    """

    def __init__(self, images: np.ndarray, batches: int, num_classes: int, seed: int, rank: int):
        mx.io.DataIter.__init__(self, len(images))
        DummyData.__init__(self, images, self._batch, batches, num_classes, seed, rank)
        self.provide_data, self.provide_label = descriptions(images.shape)
        self._data = mx.nd.array(images, dtype="float32")

    def _batch(self, labels: np.ndarray) -> mx.io.DataBatch:
        return mx.io.DataBatch([self._data], [host_array(labels)], 0)


class DummyIter(DummyImages):
    """Iterates over batches of random images, see DummyImages.

    Args:
        batch_size: B.
        data_shape: (3, H, W).
        batches, num_classes, seed, rank: See DummyData.

    Raises:
        ValueError: An argument is out of range.
    """

    def __init__(
        self, batch_size: int, data_shape: tuple, batches: int, num_classes: int = 10000, seed: int = 0, rank: int = 0
    ):
        check_shape(data_shape)
        images = np.random.default_rng((seed, rank)).integers(0, 256, (batch_size, *data_shape), dtype=np.uint8)
        super().__init__(images, batches, num_classes, seed, rank)


def descriptions(shape: tuple[int, ...]) -> tuple[list, list]:
    """Returns (provide_data, provide_label): data (B, 3, H, W) float32, and label (B,) int64, exact above 2^24."""
    return [mx.io.DataDesc("data", shape, np.float32)], [mx.io.DataDesc("softmax_label", shape[:1], np.int64)]


def check_shape(data_shape: tuple) -> tuple[int, int]:
    """Returns (H, W) of a data_shape; raises ValueError unless it is (3, H, W)."""
    if len(data_shape) != 3 or data_shape[0] != 3 or min(data_shape) <= 0:
        raise ValueError(f"data_shape must be (3, height, width), got {tuple(data_shape)}")
    return data_shape[1], data_shape[2]
