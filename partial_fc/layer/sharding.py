"""Splits the class centers over the ranks.

Shapes: C classes, R ranks, L classes of one rank.
"""

from typing import NamedTuple


class Shard(NamedTuple):
    """A half-open range of classes, ``start <= class < stop``."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of classes L; 0 on the last ranks if R > C."""
        return self.stop - self.start


def shard_of(num_classes: int, rank: int, size: int) -> Shard:
    """Returns the classes of ``rank``: C // R, and one more on each of the first C % R ranks.

    There are no padded classes, which would take part in the softmax.

    Raises:
        ValueError: the rank is not in 0 .. R-1, or C or R is below 1.
    """
    if num_classes < 1 or size < 1:
        raise ValueError(f"cannot split {num_classes} classes over {size} ranks: both must be at least 1")
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} is not one of the {size} ranks 0..{size - 1}")
    count, longer = divmod(num_classes, size)
    start = rank * count + min(rank, longer)
    return Shard(start, start + count + (rank < longer))


def num_sampled(num_local: int, sample_ratio: float, name: str = "sample_ratio") -> int:
    """Returns the number of centers that a rank with L classes samples per step: max(1, floor(L * sample_ratio)).

    It is 0 if L or the ratio is 0: then a step samples only the classes of the batch. ``name`` is the ratio's, for
    errors.

    Raises:
        ValueError: the sample ratio is outside [0, 1].
    """
    if not 0.0 <= sample_ratio <= 1.0:
        raise ValueError(f"{name} must be at least 0 and at most 1, not {sample_ratio}")
    # 100 * 0.29 is 28.999999999999996 in float64; the tolerance of 1e-9 makes it 29.
    return min(num_local, max(int(sample_ratio > 0), int(num_local * sample_ratio + 1e-9)))
