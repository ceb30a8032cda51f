"""Reading the backbone of a checkpoint."""

import os
from collections.abc import Sequence

import numpy as np

from .arrays import read_arrays
from .layout import BACKBONE, statistics_file
from .manifest import Manifest

AVERAGE = "ema:"  # prefix of the names of a moving average of the weights
MEAN = "mean:"  # prefix of the names of the mean over the last epochs
MEAN_WINDOW = f"{MEAN}window"  # (2,) int64, the first of these epochs, and the number of ends in the mean


def read_backbone(path: str, manifest: Manifest, rank: int, size: int) -> dict[str, np.ndarray]:
    """Reads a checkpoint's ``arg:<name>`` parameters, ``aux:<name>`` statistics and ``state:<name>:<place>`` by name.

    Each rank has running statistics of its own images. With the same number of ranks, this rank reads its own; with
    another number, it reads the mean over all ranks, which is also what is verified and exported. Raises OSError or
    ValueError, which names the file, if one cannot be read.
    """
    ranks = [rank] if manifest.ranks == size else range(manifest.ranks)
    saved = [read_arrays(os.path.join(path, statistics_file(number))) for number in ranks]
    return {**read_arrays(os.path.join(path, BACKBONE)), **mean_statistics(saved)}


def mean_statistics(saved: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Returns the mean of running statistics over the ranks, as float32."""
    mean = {name: np.mean([arrays[name] for arrays in saved], axis=0, dtype=np.float64) for name in saved[0]}
    return {name: array.astype(np.float32) for name, array in mean.items()}


def final_weights(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the arrays of a checkpoint with the weights that its training saves: the mean, if there is one."""
    weights = {name: array for name, array in arrays.items() if not name.startswith((AVERAGE, MEAN))}
    mean = {name.removeprefix(MEAN): array for name, array in arrays.items() if name.startswith(MEAN)}
    mean.pop(MEAN_WINDOW.removeprefix(MEAN), None)
    return {**weights, **mean}
