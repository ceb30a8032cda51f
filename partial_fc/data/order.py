"""Which images a rank reads in which batch, and the random numbers that change their pixels.

Pure functions of (seed, epoch, place): every rank computes its part of the same order without talking to the others,
and an image's pixels do not depend on the number of ranks. A place is a number of images of the global order.

Shapes: N images, B local batch, R ranks, G = B*R global batch.
"""

from __future__ import annotations

import numpy as np

from partial_fc.utils.hashing import GOLDEN, mix, stream

from .permutation import Permutation


def check_batch(num_images: int, batch_size: int, size: int) -> None:
    """Raise ValueError for a batch that is not positive, or if there are fewer images than one global batch."""
    if batch_size <= 0:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if batch_size * size > num_images:
        raise ValueError(
            f"batch_size {batch_size} on {size} ranks needs {batch_size * size} images, there are {num_images}: "
            "take a smaller batch or fewer ranks"
        )


def epoch_entries(num_images: int, shuffle: bool, seed: int, epoch: int, places: np.ndarray) -> np.ndarray:
    """The images (P,) int64 at `places` (P,) of the epoch's order, or without `shuffle` of the file's."""
    if not shuffle:
        return places
    # Another constant than uniform_draws' first: the order must tell nothing of the pixels.
    return Permutation(num_images, mix(stream(seed, epoch) ^ GOLDEN)[0])(places)


def rank_places(place: int, batch_size: int, rank: int) -> np.ndarray:
    """(B,) int64 places that `rank` reads of the global batch that begins at `place`."""
    begin = place + rank * batch_size
    return np.arange(begin, begin + batch_size)


def uniform_draws(seed: int, epoch: int, positions: np.ndarray, count: int) -> np.ndarray:
    """(B, count) float64 in [0, 1): `count` independent numbers for each image position (B,) in this epoch.

    A hash, not a generator: one state an image and epoch would cost more than decoding it.
    """
    image = mix(stream(seed, epoch) + np.asarray(positions).astype(np.uint64))
    draws = mix(image[:, None] + GOLDEN * np.arange(1, count + 1, dtype=np.uint64))
    return (draws >> np.uint64(11)) * 2.0**-53
