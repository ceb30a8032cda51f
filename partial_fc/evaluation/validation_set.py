"""The part of a set of validation pairs that one rank embeds.

Shapes: P pairs of the set, images 2p and 2p + 1 make pair p; H, W image size.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from partial_fc.data.pairs_bin import read_pairs
from partial_fc.data.transforms import decode_rgb
from partial_fc.layer.sharding import shard_of


class PairsOfRank(NamedTuple):
    """Attributes:
    issame: (P,) bool, of the whole set.
    images: encoded images of this rank's pairs alone, as they are in the file: a tenth of what they are as pixels.
    first_image: the number that the first of them has in the set.
    name: of the set, for messages.
    """

    issame: np.ndarray
    images: list[bytes]
    first_image: int
    name: str

    @classmethod
    def read(cls, name: str, path: str | os.PathLike, rank: int, size: int) -> PairsOfRank:
        """What rank ``rank`` of ``size`` embeds; pairs stay together.

        Raises:
            OSError, ValueError: the file is missing or damaged; names it.
        """
        images, issame = read_pairs(path)
        mine = shard_of(len(issame), rank, size)
        return cls(issame, images[2 * mine.start : 2 * (mine.start + mine.size)], 2 * mine.start, name)

    def decode(self, start: int, stop: int, image_size: int) -> np.ndarray:
        """(stop - start, H, W, 3) uint8 RGB of those of ``images``.

        Raises:
            ValueError: an image is damaged or of another size; names it.
        """
        return decode_faces(self.images[start:stop], image_size, self.name, self.first_image + start)


def decode_faces(images: Sequence[bytes], image_size: int, name: str, first: int = 0) -> np.ndarray:
    """(N, H, W, 3) uint8 RGB of N encoded images of the set ``name``, of which they are number ``first`` and on.

    Raises:
        ValueError: one is damaged or of another size; names it.
    """
    pixels = np.empty((len(images), image_size, image_size, 3), np.uint8)
    for row, image in enumerate(images):
        try:
            pixels[row] = decode_rgb(image, (image_size, image_size))
        except ValueError as error:
            raise ValueError(f"image {first + row} of the validation set {name} {error}") from None
    return pixels
