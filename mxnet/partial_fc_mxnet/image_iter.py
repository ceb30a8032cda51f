"""Data iterators: face sets in RecordIO files, and dummy batches that cost nothing.

Shapes: B local batch, R ranks, H, W image size, C classes.
"""

from __future__ import annotations

import mxnet as mx
import numpy as np

from partial_fc.face_batches import FaceBatches


class Cursor:
    """Where an iterator stands: batch `number` of `batches`, in epoch `epoch`."""

    def __init__(self, batches: int):
        self.batches, self.epoch, self.number = batches, 0, 0

    def advance(self) -> int:
        """The number of the batch to read now. Raises StopIteration at the end of the epoch."""
        if self.number == self.batches:
            raise StopIteration
        self.number += 1
        return self.number - 1

    def reset(self) -> None:
        """Start the next epoch; before the first batch of an epoch this changes nothing."""
        if self.number > 0:
            self.epoch, self.number = self.epoch + 1, 0


class FaceImageIter(mx.io.DataIter):
    """The images of `path_imgrec` (its .idx beside it), the part of rank `context` out of `context_num`.

    Batches hold images (B, 3, H, W) float32 RGB 0..255 and labels (B,) int64.

    data_shape: (3, H, W), the size that the images have.
    shuffle: a new order each epoch, from (seed, epoch), that all ranks share.
    rand_mirror: mirror every second image. cutoff: side of a square erased from every second image.
    color_jittering: brightness, contrast and saturation vary by this share, 0 to 1.
    images_filter: leave out identities with fewer images than this; class labels stay as they are.

    `num_classes` is the number of identities in the file; `check_labels(C)` raises ValueError naming the record whose
    label does not fit. Raises OSError or ValueError, naming file and mend, for files and sizes that cannot be, and in
    `next` for a damaged image, naming file and key.
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
    ):
        height, width = check_shape(data_shape)
        self._faces = FaceBatches(
            path_imgrec,
            batch_size,
            (height, width),
            shuffle=shuffle,
            rand_mirror=rand_mirror,
            cutoff=cutoff,
            color_jittering=color_jittering,
            images_filter=images_filter,
            rank=context,
            size=context_num,
            seed=seed,
        )
        super().__init__(batch_size)
        self.provide_data, self.provide_label = descriptions(batch_size, data_shape)
        self.cursor = Cursor(self._faces.batches)
        self.num_images = len(self._faces.positions)
        self.num_classes = self._faces.records.num_identities
        self.check_labels = self._faces.records.check_labels

    def reset(self) -> None:
        """Start the next epoch; before the first batch of an epoch this changes nothing."""
        self.cursor.reset()

    def next(self) -> mx.io.DataBatch:
        """The next batch. Raises StopIteration at the end of the epoch, on all ranks after the same batch."""
        number = self.cursor.advance()
        images, labels = self._faces.batch(self.cursor.epoch, number)
        # Transposed here: MXNet's own transpose of uint8 takes 27 ms for 64 images on one core, NumPy's takes 2.
        data = np.ascontiguousarray(images.transpose(0, 3, 1, 2), np.float32)
        return data_batch(mx.nd.array(data, dtype="float32"), labels)


class DummyIter(mx.io.DataIter):
    """The same random images in every batch, labels over all classes, different in each batch and on each rank.

    What a step costs without reading: comparing its speed with FaceImageIter's shows whether IO is the bottleneck.
    After `reset` the same batches come again.
    """

    def __init__(
        self,
        batch_size: int,
        data_shape: tuple,
        batches: int,
        num_classes: int = 10000,
        seed: int = 0,
        rank: int = 0,
    ):
        check_shape(data_shape)
        for name, value in (("batch_size", batch_size), ("batches", batches), ("num_classes", num_classes)):
            if value <= 0:
                raise ValueError(f"{name} must be at least 1, got {value}")
        super().__init__(batch_size)
        self.provide_data, self.provide_label = descriptions(batch_size, data_shape)
        self.cursor = Cursor(batches)
        self.num_classes, self._key = num_classes, (seed, rank)
        pixels = np.random.default_rng(self._key).integers(0, 256, (batch_size, *data_shape), dtype=np.uint8)
        self._data = mx.nd.array(pixels, dtype="float32")

    def reset(self) -> None:
        """Start again with the first batch."""
        self.cursor.reset()

    def next(self) -> mx.io.DataBatch:
        """The next batch. Raises StopIteration after `batches` of them."""
        number = self.cursor.advance()
        # The constant keeps this stream apart from the draw of negatives, which is seeded by (seed, rank) too.
        labels = np.random.default_rng((*self._key, 0xD0, number)).integers(0, self.num_classes, self.batch_size)
        return data_batch(self._data, labels)


def descriptions(batch_size: int, data_shape: tuple) -> tuple[list, list]:
    """What a batch holds: data (B, 3, H, W) float32 and label (B,) int64."""
    data = mx.io.DataDesc("data", (batch_size, *data_shape), np.float32)
    return [data], [mx.io.DataDesc("softmax_label", (batch_size,), np.int64)]


def data_batch(data: mx.nd.NDArray, labels: np.ndarray) -> mx.io.DataBatch:
    """A DataBatch whose labels stay integers: float32 has no 16,777,217."""
    return mx.io.DataBatch([data], [mx.nd.array(labels, dtype="int64")], 0)


def check_shape(data_shape: tuple) -> tuple[int, int]:
    """(H, W) of data_shape (3, H, W). Raises ValueError for another form."""
    if len(data_shape) != 3 or data_shape[0] != 3 or min(data_shape) <= 0:
        raise ValueError(f"data_shape must be (3, height, width), got {tuple(data_shape)}")
    return data_shape[1], data_shape[2]
