"""A hash of integers to random bits, for numbers that must depend on what they belong to and on nothing else.

Constants of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
"""

from __future__ import annotations

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)


def mix(words: np.ndarray) -> np.ndarray:
    """splitmix64's step on an array of uint64, modulo 2^64."""
    words = words + GOLDEN
    words = (words ^ (words >> np.uint64(30))) * MIX_1
    words = (words ^ (words >> np.uint64(27))) * MIX_2
    return words ^ (words >> np.uint64(31))


def stream(seed: int, epoch: int) -> np.ndarray:
    """(1,) uint64 that stands for an epoch of a run."""
    return mix(mix(np.array([seed], np.uint64)) + np.uint64(epoch))
