"""Faces, or other images of fixed size, in the files of insightface: train.rec, and pairs in ``.bin`` files.

Shapes: N images, H = W image size.
"""

import logging
import multiprocessing
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partial_fc.data.batch import Inputs
from partial_fc.data.face_items import FaceItems
from partial_fc.data.folder import others_text
from partial_fc.data.pairs_bin import read_pairs
from partial_fc.data.training_data import Batches
from partial_fc.data.transforms import Augmentation
from partial_fc.distributed.collectives import Collectives
from partial_fc.evaluation.validation_set import PairsOfRank, raw_pixel_distances
from partial_fc.evaluation.verification import verify_distances
from partial_fc.evaluation.words import words_of
from partial_fc.training.inputs import check_records, draw_demo, record_path, require_set, validation_sets
from partial_fc.utils.config import Setting, SettingsError

from .evaluation import Evaluation
from .pairs import PairShare, PairVerification
from .task import Task

CHUNK = 64  # images that are decoded at a time to find damaged ones


class Faces(Task):
    """Images of faces, one class for each person, or other images of classes; inputs (B, 3, H, W) uint8 RGB."""

    pixels = True
    options = (
        Setting("cutout", 0, "side in pixels of a square erased from each image with probability 1/2", at_least=0),
        Setting(
            "color_jittering",
            0.0,
            "strength c of the color jitter: brightness, contrast and saturation are scaled by 1 - c to 1 + c",
            at_least=0,
            at_most=1,
        ),
        Setting(
            "jpeg_compression",
            0,
            "lowest quality of JPEG compression, applied to each image with probability 1/2; 0 disables it",
            at_least=0,
            at_most=100,
        ),
        Setting("min_images_per_class", 0, "identities with fewer images are left out", at_least=0),
        Setting(
            "resize",
            False,
            "scale images to image_size without cropping, and convert those that are gray or have alpha, instead of "
            "refusing them",
        ),
    )
    cutout: int
    color_jittering: float
    jpeg_compression: int
    min_images_per_class: int
    resize: bool

    def __init__(self, settings: Any, **options: Any):
        super().__init__(settings, **options)
        if self.cutout > settings.image_size:
            raise SettingsError(f"cutout is {self.cutout}, but must be at most {settings.image_size}, the image_size")

    def prepare(self, home: str) -> None:
        """Checks the path of the set; draws the demo if it is missing."""
        if not self.settings.debug:
            check_records(record_path(self.settings))
            draw_demo(self.settings, os.path.join(home, "data"))
            require_set(record_path(self.settings))

    def source(self) -> str:
        """See Task."""
        return record_path(self.settings)

    def items(self) -> FaceItems:
        """See Task."""
        settings = self.settings
        return FaceItems(
            record_path(settings),
            (settings.image_size, settings.image_size),
            Augmentation(settings.rand_mirror, self.cutout, self.color_jittering, self.jpeg_compression),
            0 if settings.labels else self.min_images_per_class,  # else by the labels of the file
            settings.seed,
            self.resize,
        )

    def batches(self, rank: int, size: int) -> Batches:
        """See Task."""
        batches: Any = super().batches(rank, size)
        records = (batches.items.items if self.settings.labels else batches.items).records
        if records.left_out and rank == 0 and multiprocessing.parent_process() is None:  # not in worker processes
            logging.warning("%s: %s", records.path, others_text(records.left_out))
        return batches

    def dummy_inputs(self, count: int, random: np.random.Generator) -> np.ndarray:
        """Returns random pixels."""
        side = self.settings.image_size
        return random.integers(0, 256, (count, 3, side, side), dtype=np.uint8)

    def evaluations(self) -> dict[str, Evaluation]:
        """Returns the pairs of each name in ``val_targets``, whether or not the file exists."""
        settings, words = self.settings, words_of(self.settings.task, self.settings.dataset)
        return {
            name: FacePairs(path, settings.image_size, settings.rand_mirror, self.resize, words.kinds)
            for name, path in validation_sets(settings).items()
        }


class FacePairs(PairVerification):
    """Pairs in a ``.bin`` file. A rank keeps the encoded images of its own pairs in memory.

    Args:
        path: path of the file.
        image_size: H.
        mirrored: whether to add the embedding of the mirror image.
        resize: whether to scale images of another size.
        kinds: see PairVerification.
    """

    def __init__(
        self,
        path: str,
        image_size: int,
        mirrored: bool = True,
        resize: bool = False,
        kinds: tuple[str, str] = PairVerification.kinds,
    ):
        super().__init__()
        self.kinds = kinds
        self.path, self.paths, self.mirrored = path, (path,), mirrored
        self.image_size, self.resize = image_size, resize

    def load(self, name: str, collectives: Collectives) -> PairShare:
        """Reads this rank's share, and decodes each image once to find damaged ones."""
        pairs = PairsOfRank.read(name, self.path, collectives.rank, collectives.size)

        def read(start: int, stop: int) -> np.ndarray:
            return pairs.decode(start, stop, self.image_size, self.resize).transpose(0, 3, 1, 2)

        for start in range(0, len(pairs.images), CHUNK):
            collectives.report_progress()
            read(start, start + CHUNK)
        return PairShare(pairs.issame, len(pairs.images), read)

    def views(self, inputs: Inputs) -> Sequence[Inputs]:
        """Returns the images, and their mirror images."""
        return [inputs, inputs[..., ::-1]] if self.mirrored else [inputs]

    def shown_items(self) -> list[bytes]:
        """See PairVerification."""
        return read_pairs(self.path)[0]

    def baselines(self, report_progress: Callable[[], None]) -> dict[str, float]:
        """Returns the accuracy of the pixels themselves."""
        images, issame = read_pairs(self.path)
        distance = raw_pixel_distances(images, self.image_size, self.path, self.resize)
        return {"raw_pixels": verify_distances(distance, issame).accuracy}
