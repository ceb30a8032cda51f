"""Batches of a face set as NumPy arrays, for one rank; the iterators of the frameworks wrap it.

Shapes: N images in use, B local batch, R ranks, G = B*R global batch, H, W image size.
"""

import contextlib
import logging
import multiprocessing
import os
import time

import cv2
import numpy as np

from .batch import Batch
from .folder import others_text
from .image_set import ImageSet
from .label_runs import KeptImages, LabelRuns
from .order import uniform_draws
from .rank_batches import RankBatches
from .read_log import ReadLog
from .sources.opening import open_images
from .transforms import DRAWS, Augmentation, augment, check_size, decode_rgb


class FaceBatches(RankBatches):
    """The batches of one rank: images (B, 3, H, W) uint8 RGB and their labels. Thread-safe.

    Args:
        rec_path: path of the train.rec, or another set, see open_images.
        image_size: (H, W).
        augmentation: its effect on an image depends on (seed, epoch, image) only.
        min_images_per_class: leave out identities with fewer images; class labels do not change.
        skip_bad_images: number of bad images to replace by the following one, see ReadLog.
        batch_size, shuffle, rank, size, seed: see RankBatches; the seed is also that of the augmentation.

    Raises:
        OSError, ValueError: the set cannot be read, or an argument is out of range.
    """

    def __init__(
        self,
        rec_path: str | os.PathLike,
        batch_size: int,
        image_size: tuple,
        shuffle: bool = False,
        augmentation: Augmentation = Augmentation(),  # noqa: B008  immutable
        min_images_per_class: int = 0,
        skip_bad_images: int = 0,
        rank: int = 0,
        size: int = 1,
        seed: int = 0,
    ):
        if len(image_size) != 2 or min(image_size) <= 0:
            raise ValueError(f"image_size must be (height, width) of at least 1, got {tuple(image_size)}")
        augmentation.check()
        self.records = open_images(rec_path)
        if self.records.left_out and not rank and multiprocessing.parent_process() is None:  # once, not by workers
            logging.getLogger(__name__).warning("%s: %s", rec_path, others_text(self.records.left_out))
        log = ReadLog(skip_bad_images, self.records.finds_all)
        check_image_size(self.records, image_size)
        self._kept = images_to_read(self.records, min_images_per_class)
        super().__init__(len(self._kept), batch_size, shuffle, rank, size, seed, log)
        self.image_size, self.augmentation = tuple(image_size), augmentation
        self.min_images_per_class, self.filtered = min_images_per_class, {"images_filter": min_images_per_class}
        # OpenCV's thread pool would compete with the framework's threads for the cores of the rank.
        cv2.setNumThreads(0)

    @property
    def num_classes(self) -> int:
        """Number of identities in the set."""
        return self.records.num_identities

    @property
    def digest(self) -> str:
        """Identifies the content of the set, independent of its path; see RecordReader.digest."""
        return self.records.digest

    def check_labels(self, num_classes: int) -> None:
        """Raises ValueError naming the first record whose label is not below `num_classes`."""
        self.records.check_labels(num_classes)

    def close(self) -> None:
        """Closes the file."""
        self.records.close()

    def _load(self, numbers: np.ndarray, epoch: int) -> tuple[Batch, int, float]:
        positions = self._kept.positions(numbers)
        images = np.empty((self.batch_size, 3, *self.image_size), np.uint8)
        labels = self.records.labels(positions)
        draws = uniform_draws(self.seed, epoch, positions, DRAWS).tolist()
        num_bytes, read_seconds = 0, 0.0
        for row, (position, label) in enumerate(zip(positions.tolist(), labels.tolist())):
            image, labels[row], length, seconds = self._load_one(position, label)
            num_bytes, read_seconds = num_bytes + length, read_seconds + seconds
            # Takes a fifth of the time of NumPy's transpose.
            cv2.split(augment(image, draws[row], self.augmentation), tuple(images[row]))
        return Batch(images, labels), num_bytes, read_seconds

    def sample(self, count: int) -> np.ndarray:
        """Returns (count, 3, H, W) uint8 RGB: the first good images of the set, not augmented."""
        faces = [np.empty((0, *self.image_size, 3), np.uint8)]
        for position in range(self.num_images):
            if len(faces) > count:
                break
            with contextlib.suppress(ValueError):
                faces.append(self._image(position)[None])
        return np.concatenate(faces).transpose(0, 3, 1, 2)

    def label_runs(self) -> LabelRuns:
        """Returns the labels of all images."""
        return self.records.runs

    def read(self, positions: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
        """See LabelledBatches; images are (n, 3, H, W) uint8 RGB."""
        faces, good = [], np.ones(len(positions), bool)
        for row, position in enumerate(positions.tolist()):
            try:
                faces.append(self._image(position))
            except ValueError as error:
                self.log.skip(position, error)
                good[row] = False
        return np.stack(faces).transpose(0, 3, 1, 2) if faces else None, good

    def _image(self, position: int) -> np.ndarray:
        return self._decode(position, self.records.read(position, int(self.records.labels(position))))

    def _load_one(self, position: int, label: int) -> tuple[np.ndarray, int, int, float]:
        """Returns the image at `position`, or the next good one if bad ones may be skipped.

        Returns:
            The image, its label, its bytes as it is stored, and the seconds that reading it took.
        """

        def load(place: int) -> tuple[np.ndarray, int, int, float]:
            own = label if place == position else int(self.records.labels(place))
            start = time.perf_counter()
            stored = self.records.read(place, own)
            seconds = time.perf_counter() - start
            num_bytes = len(stored) if isinstance(stored, bytes) else stored.nbytes
            return self._decode(place, stored), own, num_bytes, seconds

        return self.log.first_good(position, load, self._kept.after)

    def _decode(self, position: int, stored: bytes | np.ndarray) -> np.ndarray:
        try:
            if isinstance(stored, bytes):
                return decode_rgb(stored, self.image_size, only_color=True)
            check_size(stored.shape[:2], self.image_size)
            return stored
        except ValueError as error:
            raise ValueError(f"{self.records.describe(position)} {error}; {self.records.advice}") from None


def check_image_size(records: ImageSet, image_size: tuple) -> None:
    """Raises ValueError if the set's `property` file has another image size."""
    if records.image_size is not None and records.image_size != tuple(image_size):
        actual, expected = records.image_size, tuple(image_size)
        raise ValueError(
            f"{records.path} has images of {actual[0]}x{actual[1]} (its property file), expected "
            f"{expected[0]}x{expected[1]}: train with the size of the set, or pack the set again with the other size"
        )


def images_to_read(records: ImageSet, min_images_per_class: int) -> KeptImages:
    """Returns the images whose identity has at least `min_images_per_class` images."""
    counts, of_runs = records.runs.images_per_label()
    runs = of_runs >= min_images_per_class
    kept = KeptImages(records.runs.starts[runs], records.runs.lengths()[runs])
    if len(kept) == 0:
        raise ValueError(
            f"{records.path}: no identity has {min_images_per_class} images, the largest has {counts.max()}: "
            "decrease min_images_per_class"
        )
    return kept
