"""Batches of a face set as arrays, for one rank: what a framework's iterator wraps.

Shapes: N images in use, B local batch, R ranks, G = B*R global batch, H, W image size.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import NamedTuple

import cv2
import numpy as np

from partial_fc.utils.text import plural

from .bad_images import BadImages
from .face_records import FaceRecords
from .label_runs import KeptImages
from .order import check_batch, epoch_entries, rank_places, uniform_draws
from .transforms import DRAWS, Augmentation, augment, color_channels, decode_rgb


class ReadCounters(NamedTuple):
    """What reading has cost so far, over all threads.

    `bytes` of encoded images, `read_seconds` spent in getting them from the file, `busy_seconds` in all.
    """

    images: int = 0
    bytes: int = 0
    read_seconds: float = 0.0
    busy_seconds: float = 0.0

    def plus(self, cost: Cost, busy_seconds: float) -> ReadCounters:
        """The sum of these and of what one batch has cost."""
        return ReadCounters(
            self.images + cost.images,
            self.bytes + cost.bytes,
            self.read_seconds + cost.seconds,
            self.busy_seconds + busy_seconds,
        )


class Cost:
    """What reading a batch has cost so far: `images`, `bytes`, `seconds` spent in the file."""

    def __init__(self) -> None:
        self.images, self.bytes, self.seconds = 0, 0, 0.0


class FaceBatches:
    """The batches of `rank` out of `size`: a batch is the same whatever was read before it. For several threads.

    `image_size` is (H, W). `images_filter` leaves out identities with fewer images than that; class labels stay as
    they are. What `augmentation` does to an image depends on (seed, epoch, image) only. `skip_bad_images` is the number
    of bad images to replace by their neighbours before one is an error. `num_images` is N. Raises OSError or
    ValueError, in a sentence, for what cannot be.
    """

    def __init__(
        self,
        rec_path: str | os.PathLike,
        batch_size: int,
        image_size: tuple,
        shuffle: bool = False,
        augmentation: Augmentation = Augmentation(),  # noqa: B008  immutable
        images_filter: int = 0,
        skip_bad_images: int = 0,
        rank: int = 0,
        size: int = 1,
        seed: int = 0,
    ):
        check_numbers(image_size, rank, size, seed)
        augmentation.check()
        self.bad_images = BadImages(skip_bad_images)
        self.records = FaceRecords(rec_path)
        check_image_size(self.records, image_size)
        self._kept = images_to_read(self.records, images_filter)
        self.num_images = len(self._kept)
        check_batch(self.num_images, batch_size, size)
        self.batch_size, self.image_size = batch_size, tuple(image_size)
        self.shuffle, self.seed, self.rank, self.size = shuffle, seed, rank, size
        self.images_filter, self.augmentation = images_filter, augmentation
        self.counters = ReadCounters()
        self._lock = threading.Lock()
        # A rank has one core's share; OpenCV's thread pool would fight with the engine for it.
        cv2.setNumThreads(0)

    def batch(self, epoch: int, place: int) -> tuple[np.ndarray, np.ndarray]:
        """This rank's part of the global batch that begins at `place` (0 .. N - G) of the epoch's order.

        Returns images (B, 3, H, W) uint8 RGB and labels (B,) int64. Raises ValueError naming file, key and offset for
        an image that is damaged, of another size or not in colour.
        """
        start = time.perf_counter()
        places = rank_places(place, self.batch_size, self.rank)
        positions = self._kept.positions(epoch_entries(self.num_images, self.shuffle, self.seed, epoch, places))
        images = np.empty((self.batch_size, 3, *self.image_size), np.uint8)
        labels = self.records.labels(positions)
        draws = uniform_draws(self.seed, epoch, positions, DRAWS).tolist()
        cost = Cost()
        for row, (position, label) in enumerate(zip(positions.tolist(), labels.tolist())):
            image, labels[row] = self._load(position, label, cost)
            # A fifth of the time that NumPy takes to transpose.
            cv2.split(augment(image, draws[row], self.augmentation), tuple(images[row]))
        with self._lock:
            self.counters = self.counters.plus(cost, time.perf_counter() - start)
        return images, labels

    def sample(self, count: int) -> np.ndarray:
        """(count, H, W, 3) uint8 RGB: the first images of the set, as they are; fewer where some are damaged."""
        faces = [np.empty((0, *self.image_size, 3), np.uint8)]
        for position in range(min(count, self.num_images)):
            with contextlib.suppress(ValueError):
                faces.append(self._decode(position, self.records.read_image(position)[0])[None])
        return np.concatenate(faces)

    def _load(self, position: int, label: int, cost: Cost) -> tuple[np.ndarray, int]:
        """(image, label) at `position`, or of the next good one after it where bad ones may be skipped."""
        first = position
        while True:
            start = time.perf_counter()
            try:
                encoded = self.records.read_encoded(position, label)
                cost.seconds += time.perf_counter() - start
                cost.bytes += len(encoded)
                cost.images += 1
                return self._decode(position, encoded), label
            except ValueError as error:
                self.bad_images.pass_over(position, error)
                position = self._kept.after(position)
                if position == first:
                    raise ValueError(f"{error}; nor can any other image be used") from None
                label = int(self.records.labels(position))

    def _decode(self, position: int, encoded: bytes) -> np.ndarray:
        try:
            channels = color_channels(encoded)
            if channels is not None and channels != 3:
                raise ValueError(f"has {plural(channels, 'channel')} instead of 3")
            return decode_rgb(encoded, self.image_size)
        except ValueError as error:
            raise ValueError(f"{self.records.describe(position)} {error}; write or download the set again") from None


def check_numbers(image_size: tuple, rank: int, size: int, seed: int) -> None:
    """Raise ValueError for settings that cannot be."""
    if len(image_size) != 2 or min(image_size) <= 0:
        raise ValueError(f"an image has a height and a width of at least 1, got {tuple(image_size)}")
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} does not exist among {size} ranks")
    if seed < 0:
        raise ValueError(f"seed must be >= 0, got {seed}")


def check_image_size(records: FaceRecords, image_size: tuple) -> None:
    """Raise ValueError if the set's `property` file states another image size."""
    if records.image_size is not None and records.image_size != tuple(image_size):
        stated, asked = records.image_size, tuple(image_size)
        raise ValueError(
            f"{records.rec_path} holds images of {stated[0]}x{stated[1]} (its property file), not "
            f"{asked[0]}x{asked[1]}: train with the size it has, or pack the set again with the other one"
        )


def images_to_read(records: FaceRecords, images_filter: int) -> KeptImages:
    """The images whose identity has at least `images_filter` images."""
    counts = records.runs.images_per_label(records.num_identities)
    kept = records.runs.keep(counts[records.runs.labels] >= images_filter)
    if len(kept) == 0:
        raise ValueError(
            f"{records.rec_path}: no identity has {images_filter} images, the largest has {counts.max()}: "
            "lower images_filter"
        )
    return kept
