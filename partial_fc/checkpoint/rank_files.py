"""Files of all ranks in one folder: ``0_centers.param``, ``1_centers.param``, ..."""

import os
import re
from collections.abc import Iterable

ARCFACE_CHECKPOINT = "checkpoint_gpu_{}.pt"  # files of arcface_torch


def files_of_ranks(folder: str, name: str) -> list[str]:
    """Returns the paths of the files of ranks 0, 1, ...; ``name`` has {} for the rank.

    If a file is missing, the list ends with its path, so that reading it fails. A stray file of rank 10^11 thus takes
    no memory.
    """
    ranks = set(_ranks(folder, name))
    count = next(rank for rank in range(len(ranks) + 1) if rank not in ranks)
    return [os.path.join(folder, name.format(rank)) for rank in range(count + (len(ranks) > count))]


def remove_files_of_other_ranks(folder: str, names: Iterable[str], size: int) -> None:
    """Removes the files of ranks ``size`` and higher, which an earlier job had."""
    for name in names:
        for rank in _ranks(folder, name):
            if rank >= size:
                os.remove(os.path.join(folder, name.format(rank)))


def is_of_a_rank(path: str, name: str) -> bool:
    """Returns whether a file is named ``name``, in which {} stands for any rank."""
    return _pattern(name).fullmatch(os.path.basename(path)) is not None


def _ranks(folder: str, name: str) -> list[int]:
    return [int(match[1]) for match in map(_pattern(name).fullmatch, os.listdir(folder)) if match]


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(r"(0|[1-9]\d*)".join(map(re.escape, name.split("{}"))))
