"""The order of images in an epoch, the random numbers of their augmentation, and the choice among their labels.

All are pure functions of (seed, epoch, position): every rank computes its part of the order without communication, and
the pixels of an image do not depend on the number of ranks.

Shapes: N images, B local batch, P indices, n labels of an image.
"""

import math

import numpy as np

from partial_fc.utils.hashing import GOLDEN, mix, stream

from .label_runs import NO_LABEL, distinct

# Rounds of the Feistel network. Four are enough for large N (Luby, Rackoff); small sets need more, so that odd and even
# permutations are equally likely.
ROUNDS = 8


def epoch_entries(num_images: int, shuffle: bool, seed: int, epoch: int, indices: np.ndarray) -> np.ndarray:
    """Returns the images (P,) int64 at `indices` (P,) of the epoch's order; without `shuffle`, the set's order."""
    if not shuffle:
        return indices
    # The constant makes the order independent of the augmentation, which uses the same stream.
    return Permutation(num_images, mix(stream(seed, epoch) ^ GOLDEN)[0])(indices)


def uniform_draws(seed: int, epoch: int, positions: np.ndarray, count: int) -> np.ndarray:
    """Returns (B, count) float64 in [0, 1): independent random numbers for each position (B,) in this epoch.

    They are hashes, because initializing a generator per image and epoch would take longer than decoding the image.
    """
    image = mix(stream(seed, epoch) + np.asarray(positions).astype(np.uint64))
    draws = mix(image[:, None] + GOLDEN * np.arange(1, count + 1, dtype=np.uint64))
    return (draws >> np.uint64(11)) * 2.0**-53


def draw_labels(labels: np.ndarray, count: int, seed: int, epoch: int, positions: np.ndarray) -> np.ndarray:
    """Returns (B, count), labels that are drawn from those of each image, (B, n), without replacement in this epoch.

    An image with fewer labels than ``count`` keeps all of them; NO_LABEL fills the places of the missing ones.
    """
    labels = distinct(labels)
    # No training has this seed, so that the draws are independent of the augmentation.
    draws = uniform_draws(seed + 2**31, epoch, positions, labels.shape[1])
    chosen = np.where(labels == NO_LABEL, 1, draws).argsort(axis=1, kind="stable")[:, :count]
    return np.take_along_axis(labels, chosen, axis=1)


class Permutation:
    """A random permutation of 0 .. num - 1 whose entries are computed independently of each other.

    A shuffled array of 17 million numbers would take 137 MB and two seconds in every rank and epoch. Instead, a Feistel
    network (Luby, Rackoff: How to construct pseudorandom permutations, 1988) permutes the numbers 0 .. a*b - 1, written
    as pairs (left < a, right < b). Results of num and above are permuted again until they are below num ("cycle
    walking", Black, Rogaway: Ciphers with arbitrary finite domains, 2002). There are few of them, because a and b are
    about sqrt(num).

    Args:
        num: number of entries, at least 1.
        key: uint64 that determines the permutation.
    """

    def __init__(self, num: int, key: np.uint64):
        self.num = num
        right = math.isqrt(num - 1) + 1
        self._left, self._right = np.uint64(-(-num // right)), np.uint64(right)
        self._keys = mix(np.uint64(key) + GOLDEN * np.arange(ROUNDS, dtype=np.uint64))

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the entries (P,) int64 at `numbers` (P,), each in 0 .. num - 1."""
        entries = self._permute(np.asarray(numbers).astype(np.uint64))
        outside = entries >= self.num
        while outside.any():
            entries[outside] = self._permute(entries[outside])
            outside = entries >= self.num
        return entries.astype(np.int64)

    def _permute(self, numbers: np.ndarray) -> np.ndarray:
        left, right = numbers // self._right, numbers % self._right
        for number, key in enumerate(self._keys):
            if number % 2:
                right = (right + mix(left + key) % self._right) % self._right
            else:
                left = (left + mix(right + key) % self._left) % self._left
        return left * self._right + right
