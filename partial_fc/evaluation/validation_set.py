"""The images of a validation set: the shard that one rank embeds, and raw pixels as embeddings.

Shapes: P pairs of the set; images 2p and 2p + 1 form pair p; H, W image size.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from partial_fc.data.encoding import scaled
from partial_fc.data.pairs_bin import read_pairs
from partial_fc.layer.sharding import shard_of
from partial_fc.utils.distances import squared_distances

CHUNK = 256  # images, an even number; 38 MB as float32


class PairsOfRank(NamedTuple):
    """The pairs of one rank."""

    issame: np.ndarray  # (P,) bool, labels of the entire set
    images: list[bytes]  # of this rank's pairs, encoded, which takes a tenth of the memory of their pixels
    first_image: int  # index of the first image in the set
    name: str  # name of the set for error messages

    @classmethod
    def read(cls, name: str, path: str | os.PathLike, rank: int, size: int) -> PairsOfRank:
        """Reads the shard of rank ``rank`` of ``size``. Both images of a pair are in the same shard.

        Raises:
            OSError: The file is missing.
            ValueError: The file is damaged. The message names it.
        """
        images, issame = read_pairs(path)
        shard = shard_of(len(issame), rank, size)
        return cls(issame, images[2 * shard.start : 2 * (shard.start + shard.size)], 2 * shard.start, name)

    def decode(self, start: int, stop: int, image_size: int, resize: bool = False) -> np.ndarray:
        """Decodes ``images[start:stop]``, see `decode_faces`."""
        return decode_faces(self.images[start:stop], image_size, self.name, self.first_image + start, resize)


def decode_faces(
    images: Sequence[bytes], image_size: int, name: str, first: int = 0, resize: bool = False
) -> np.ndarray:
    """Decodes N images of a set: (N, image_size, image_size, 3) uint8 RGB.

    Args:
        images: encoded.
        image_size: height and width that all images have.
        name: of the set, for error messages.
        first: index of the first image in the set.
        resize: scale images of another size instead of refusing them.

    Raises:
        ValueError: An image is damaged or has another size. The message names the image and the set.
    """
    pixels = np.empty((len(images), image_size, image_size, 3), np.uint8)
    for row, image in enumerate(images):
        try:
            pixels[row] = scaled(image, (image_size, image_size), resize)
        except ValueError as error:
            raise ValueError(f"image {first + row} of the validation set {name} {error}") from None
    return pixels


def raw_pixel_distances(images: Sequence[bytes], image_size: int, name: str, resize: bool = False) -> np.ndarray:
    """Returns (P,) float64, the squared distance between the pixels of each pair: a baseline for networks.

    The mean image is subtracted first, otherwise all cosines would be close to 1. For arguments and errors see
    `decode_faces`.
    """

    def chunks() -> Iterator[np.ndarray]:  # decoded twice, because the pixels of a whole set do not fit into memory
        for start in range(0, len(images), CHUNK):
            yield decode_faces(images[start : start + CHUNK], image_size, name, start, resize)

    mean = sum(chunk.sum(axis=0, dtype=np.float64) for chunk in chunks()) / len(images)
    centered = ((chunk.astype(np.float32) - mean.astype(np.float32)).reshape(len(chunk), -1) for chunk in chunks())
    return np.concatenate([squared_distances(rows[0::2], rows[1::2]) for rows in centered])
