"""How the class centers are split over the ranks.

Shapes: C classes, R ranks, L classes of one rank.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Shard(NamedTuple):
    """A half-open range of classes, ``start <= class < stop``."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of classes L, which is 0 on the last ranks when R > C."""
        return self.stop - self.start


def shard_sizes(num_classes: int, size: int) -> np.ndarray:
    """Classes of every rank: C // R, and one more on the first C % R ranks.

    Args:
        num_classes: C, at least 1.
        size: R, at least 1.

    Returns:
        (R,) int64; the sum is exactly C, so no phantom class takes part in the softmax.

    Raises:
        ValueError: either number is below 1.
    """
    if num_classes < 1 or size < 1:
        raise ValueError(f"cannot split {num_classes} classes over {size} ranks: both must be at least 1")
    sizes = np.full(size, num_classes // size, dtype=np.int64)
    sizes[: num_classes % size] += 1
    return sizes


def shard_of(num_classes: int, rank: int, size: int) -> Shard:
    """The classes that ``rank`` of ``size`` ranks holds.

    Raises:
        ValueError: the rank is not one of 0 .. R-1, or the split is impossible.
    """
    sizes = shard_sizes(num_classes, size)
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} is not one of the {size} ranks 0..{size - 1}")
    start = int(sizes[:rank].sum())
    return Shard(start, start + int(sizes[rank]))


def num_sampled(num_local: int, sample_ratio: float) -> int:
    """Centers drawn a step on a rank: S = max(1, floor(L * r)), and 0 only where L = 0.

    Args:
        num_local: L.
        sample_ratio: r, in (0, 1].

    Raises:
        ValueError: r outside (0, 1].
    """
    if not 0.0 < sample_ratio <= 1.0:
        raise ValueError(f"sample_ratio must be above 0 and at most 1, not {sample_ratio}")
    # 100 * 0.29 is 28.999999999999996 in binary; a billionth forgives that and nothing else.
    return min(num_local, max(1, int(num_local * sample_ratio + 1e-9)))
