"""Images of fixed size as Items: a face set, decoded and augmented.

Shapes: N images in use, P positions, H, W image size.
"""

import copy
import os
import time

import cv2
import numpy as np

from .batch import Batch
from .encoding import scaled
from .image_set import ImageSet
from .label_runs import KeptImages
from .order import uniform_draws
from .sources.forms import open_images
from .transforms import DRAWS, Augmentation, WrongSizeError, augment


class FaceItems:
    """The images of a set, see Items in item_batches.py; inputs are (P, 3, H, W) uint8 RGB. Thread-safe.

    Args:
        rec_path: path of the train.rec, or another set, see open_images.
        image_size: (H, W).
        augmentation: its random numbers depend on (seed, epoch, position in the set) only.
        min_images_per_class: leave out identities with fewer images; class labels do not change.
        seed: seed of the augmentation.
        resize: scale images of another size without cropping, and convert those that are gray or have alpha; otherwise
            they are refused.

    Attributes:
        records: the ImageSet.

    Raises:
        OSError, ValueError: the set cannot be read, or an argument is out of range.
    """

    def __init__(
        self,
        rec_path: str | os.PathLike,
        image_size: tuple,
        augmentation: Augmentation = Augmentation(),  # noqa: B008  immutable
        min_images_per_class: int = 0,
        seed: int = 0,
        resize: bool = False,
    ):
        if len(image_size) != 2 or min(image_size) <= 0:
            raise ValueError(f"image_size must be (height, width) of at least 1, got {tuple(image_size)}")
        augmentation.check()
        self.image_size, self.augmentation, self.seed, self.resize = tuple(image_size), augmentation, seed, resize
        self.order_entries = {"images_filter": min_images_per_class}
        self.records: ImageSet = open_images(rec_path)
        in_set = self.records.image_size
        if in_set is not None and in_set != self.image_size and not resize:
            raise ValueError(
                f"{self.records.path} has images of {in_set[0]}x{in_set[1]} (its property file), expected "
                f"{image_size[0]}x{image_size[1]}: set image_size to the size of the set, or resize=True to scale them"
            )
        if hasattr(self.records, "epoch_positions"):
            self.epoch_positions = self.records.epoch_positions
        self._kept = KeptImages(self.records.runs, min_images_per_class)
        if not len(self._kept):
            largest = self.records.runs.images_per_label()[0].max()
            raise ValueError(
                f"{self.records.path}: no identity has {min_images_per_class} images, the largest has {largest}: "
                "decrease min_images_per_class"
            )
        # OpenCV's thread pool would compete with the framework's threads for the cores of the rank.
        cv2.setNumThreads(0)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def num_classes(self) -> int:
        """Number of identities in the set."""
        return self.records.num_identities

    @property
    def digest(self) -> str:
        """Identifies the content of the set, independent of its path."""
        return self.records.digest

    @property
    def labels(self) -> np.ndarray:
        """Labels (N,) or (N, P) int64 of all images, in new memory."""
        return self._kept.labels()

    @property
    def without_augmentation(self) -> "FaceItems":
        """The same images without augmentation."""
        items = copy.copy(self)
        items.augmentation = Augmentation()
        return items

    def read(self, positions: np.ndarray, epoch: int) -> Batch:
        """See Items."""
        return self.read_counted(positions, epoch)[0]

    def read_counted(self, positions: np.ndarray, epoch: int) -> tuple[Batch, int, float]:
        """See Items; counts bytes as stored, and the time spent reading, without decoding."""
        in_set, labels = self._kept.at(positions)
        images = np.empty((len(positions), 3, *self.image_size), np.uint8)
        draws = uniform_draws(self.seed, epoch, in_set, DRAWS).tolist()
        num_bytes, seconds = 0, 0.0
        for row, (position, label) in enumerate(zip(in_set.tolist(), labels.tolist())):
            start = time.perf_counter()
            stored = self.records.read(position, label)
            seconds += time.perf_counter() - start
            num_bytes += len(stored) if isinstance(stored, bytes) else stored.nbytes
            image = augment(self._decode(position, stored), draws[row], self.augmentation)
            cv2.split(image, tuple(images[row]))  # five times as fast as NumPy's transpose
        return Batch(images, labels), num_bytes, seconds

    def _decode(self, position: int, stored: bytes | np.ndarray) -> np.ndarray:
        try:
            return scaled(stored, self.image_size, self.resize, only_color=not self.resize)
        except ValueError as error:
            advice = self.records.advice
            if isinstance(error, WrongSizeError):
                advice = "set resize=True to scale such images and to convert gray ones"
            raise ValueError(f"{self.records.describe(position)} {error}; {advice}") from None

    def describe(self, position: int) -> str:
        """Names an image in messages."""
        return self.records.describe(int(self._kept.at(np.array([position]))[0][0]))

    def close(self) -> None:
        """Closes the files."""
        self.records.close()
