"""Which images a rank reads in which batch, and the random numbers that change their pixels.

Pure functions of (seed, epoch, position): every rank computes the same order without talking to the others, and an
image's pixels do not depend on the number of ranks.

Shapes: N images, B local batch, R ranks, G = B*R global batch.
"""

from __future__ import annotations

import numpy as np

# Constants of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)


def batches_per_epoch(num_images: int, batch_size: int, size: int) -> int:
    """Whole global batches in N images. All ranks drop the rest together, else they would wait for each other.

    Raises ValueError for a batch that is not positive or for fewer images than one global batch.
    """
    if batch_size <= 0:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if batch_size * size > num_images:
        raise ValueError(
            f"batch_size {batch_size} on {size} ranks needs {batch_size * size} images, there are {num_images}: "
            "take a smaller batch or fewer ranks"
        )
    return num_images // (batch_size * size)


def epoch_order(num_images: int, shuffle: bool, seed: int, epoch: int) -> np.ndarray:
    """Order (N,) int64 of the epoch, the same on every rank; 0 .. N-1 without `shuffle`."""
    if not shuffle:
        return np.arange(num_images)
    return np.random.default_rng([seed, epoch]).permutation(num_images)


def rank_part(order: np.ndarray, batch: int, batch_size: int, rank: int, size: int) -> np.ndarray:
    """The (B,) entries of the epoch's order that `rank` reads in batch number `batch`."""
    begin = (batch * size + rank) * batch_size
    return order[begin : begin + batch_size]


def uniform_draws(seed: int, epoch: int, positions: np.ndarray, count: int) -> np.ndarray:
    """(B, count) float64 in [0, 1): `count` independent numbers for each image position (B,) in this epoch.

    A hash, not a generator: one state an image and epoch would cost more than decoding it.
    """
    stream = mix(mix(np.array([seed], np.uint64)) + np.uint64(epoch))
    image = mix(stream + np.asarray(positions).astype(np.uint64))
    draws = mix(image[:, None] + GOLDEN * np.arange(1, count + 1, dtype=np.uint64))
    return (draws >> np.uint64(11)) * 2.0**-53


def mix(words: np.ndarray) -> np.ndarray:
    """splitmix64's step on an array of uint64, modulo 2^64."""
    words = words + GOLDEN
    words = (words ^ (words >> np.uint64(30))) * MIX_1
    words = (words ^ (words >> np.uint64(27))) * MIX_2
    return words ^ (words >> np.uint64(31))
