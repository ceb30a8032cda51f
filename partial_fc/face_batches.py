"""Batches of a face set as arrays, for one rank: what a framework's iterator wraps.

Shapes: B local batch, R ranks, G = B*R global batch, H, W image size.
"""

from __future__ import annotations

import os

import cv2
import numpy as np

from partial_fc.data_order import batches_per_epoch, epoch_order, rank_part, uniform_draws
from partial_fc.face_records import FaceRecords
from partial_fc.images import DRAWS, augment, decode_rgb


class FaceBatches:
    """The batches of `rank` out of `size`: batch k of an epoch is the same whatever was read before it.

    `image_size` is (H, W). `images_filter` leaves out identities with fewer images than that; class labels stay as
    they are. `rand_mirror`, `cutoff`, `color_jittering`: see images.augment; what they do to an image depends on
    (seed, epoch, image) only. `batches` is the number of batches of an epoch; images beyond the last whole global
    batch are left out of the epoch on all ranks. Raises OSError or ValueError, in a sentence, for what cannot be.
    """

    def __init__(
        self,
        rec_path: str | os.PathLike,
        batch_size: int,
        image_size: tuple,
        shuffle: bool = False,
        rand_mirror: bool = False,
        cutoff: int = 0,
        color_jittering: float = 0,
        images_filter: int = 0,
        rank: int = 0,
        size: int = 1,
        seed: int = 0,
    ):
        check_numbers(image_size, cutoff, color_jittering, rank, size, seed)
        self.records = FaceRecords(rec_path)
        check_image_size(self.records, image_size)
        self.positions = positions_to_read(self.records, images_filter)
        self.batches = batches_per_epoch(len(self.positions), batch_size, size)
        self.batch_size, self.image_size = batch_size, tuple(image_size)
        self.shuffle, self.seed, self.rank, self.size = shuffle, seed, rank, size
        self._augment = (rand_mirror, cutoff, color_jittering)
        self._order = (-1, self.positions)  # epoch, and the positions in its order
        # A rank has one core's share; OpenCV's thread pool would fight with the engine for it.
        cv2.setNumThreads(0)

    def batch(self, epoch: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        """images (B, H, W, 3) uint8 RGB and labels (B,) int64 of batch `number` (0 .. batches - 1) of an epoch.

        Raises ValueError naming file and key for an image that is damaged or of another size.
        """
        part = rank_part(self._epoch_positions(epoch), number, self.batch_size, self.rank, self.size)
        images = np.empty((self.batch_size, *self.image_size, 3), np.uint8)
        draws = uniform_draws(self.seed, epoch, part, DRAWS)
        for image, position, numbers in zip(images, part, draws):
            self._load(int(position), image)
            augment(image, numbers, *self._augment)
        return images, self.records.labels[part]

    def _epoch_positions(self, epoch: int) -> np.ndarray:
        if self._order[0] != epoch:
            order = epoch_order(len(self.positions), self.shuffle, self.seed, epoch)
            self._order = (epoch, self.positions[order])
        return self._order[1]

    def _load(self, position: int, out: np.ndarray) -> None:
        """Read and decode one image into `out` (H, W, 3)."""
        encoded, _ = self.records.read_image(position)
        try:
            decode_rgb(encoded, out)
        except ValueError as error:
            raise ValueError(f"{self.records.describe(position)} {error}; write or download the set again") from None


def check_numbers(image_size: tuple, cutoff: int, color_jittering: float, rank: int, size: int, seed: int) -> None:
    """Raise ValueError for settings that cannot be."""
    if len(image_size) != 2 or min(image_size) <= 0:
        raise ValueError(f"an image has a height and a width of at least 1, got {tuple(image_size)}")
    if cutoff < 0 or not 0 <= color_jittering <= 1:
        raise ValueError(f"cutoff must be >= 0 and color_jittering in [0, 1], got {cutoff} and {color_jittering}")
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
            f"{asked[0]}x{asked[1]}: set the image size to {stated[0]}"
        )


def positions_to_read(records: FaceRecords, images_filter: int) -> np.ndarray:
    """int64 positions of the images whose identity has at least `images_filter` images."""
    counts = np.bincount(records.labels, minlength=records.num_identities)
    positions = np.flatnonzero(counts[records.labels] >= images_filter)
    if len(positions) == 0:
        raise ValueError(
            f"{records.rec_path}: no identity has {images_filter} images, the largest has {counts.max()}: "
            "lower images_filter"
        )
    return positions
