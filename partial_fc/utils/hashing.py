"""Hashes integers to random bits, for random numbers that depend only on an index.

The constants are from splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
"""

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)


def mix(numbers: np.ndarray) -> np.ndarray:
    """Returns one step of splitmix64 for each number of a uint64 array."""
    numbers = numbers + GOLDEN
    numbers = (numbers ^ (numbers >> np.uint64(30))) * MIX_1
    numbers = (numbers ^ (numbers >> np.uint64(27))) * MIX_2
    return numbers ^ (numbers >> np.uint64(31))


def stream(seed: int, number: int) -> np.ndarray:
    """Returns the random stream with this number, such as an epoch or a rank, (1,) uint64."""
    return mix(mix(np.array([seed], np.uint64)) + np.uint64(number))
