"""Files of all ranks in one folder, such as ``0_centers.param``, ``1_centers.param``, ..."""

import os
import re
from collections.abc import Iterable

ARCFACE_CHECKPOINT = "checkpoint_gpu_{}.pt"  # of arcface_torch


def files_of_ranks(folder: str, name: str) -> list[str]:
    """Returns the paths of ranks 0, 1, ... up to the last one that has a file; ``name`` has {} for the rank.

    Where some are missing, the first of those is the last path, so that a file of rank 10^11 takes no memory.
    """
    there = set(_ranks(folder, name))
    count = next(rank for rank in range(len(there) + 1) if rank not in there)
    return [os.path.join(folder, name.format(rank)) for rank in range(count + (len(there) > count))]


def remove_files_of_other_ranks(folder: str, names: Iterable[str], size: int) -> None:
    """Removes the files of ranks that a job of ``size`` ranks does not have."""
    for name in names:
        for rank in _ranks(folder, name):
            if rank >= size:
                os.remove(os.path.join(folder, name.format(rank)))


def is_of_a_rank(path: str, name: str) -> bool:
    """Returns whether a file has this name with some rank; ``name`` has {} for the rank."""
    return _pattern(name).fullmatch(os.path.basename(path)) is not None


def _ranks(folder: str, name: str) -> list[int]:
    return [int(found[1]) for found in map(_pattern(name).fullmatch, os.listdir(folder)) if found]


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(r"(0|[1-9]\d*)".join(map(re.escape, name.split("{}"))))
