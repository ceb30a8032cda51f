"""Which class of a checkpoint is which class of a training on other identities.

As text, a line for each class of the training: the number of the class in the checkpoint, or -1 for a new one. As
.npy, (C,) int64 of the same meaning.

Shapes: C classes of the training.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping

import numpy as np

from .arrays import open_array

NEW = -1


def read_class_map(path: str, num_classes: int, num_saved: int) -> np.ndarray:
    """Reads a class map.

    Args:
        path: of the file.
        num_classes: C.
        num_saved: classes in the checkpoint.

    Returns:
        (C,) int64; -1 for a new class.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is no number, a class is not in the checkpoint or is taken twice, or there are more or
            fewer lines than classes.
    """
    found = _read_npy(path) if path.endswith(".npy") else _read_text(path)
    if len(found) != num_classes:
        raise ValueError(f"{path} has {len(found)} lines for {num_classes} classes: one for each is needed")
    wrong = np.flatnonzero((found < NEW) | (found >= num_saved))
    if len(wrong):
        raise ValueError(
            f"{path}, line {wrong[0] + 1}: there is no class {found[wrong[0]]} in the checkpoint, which has "
            f"{num_saved}; -1 is for new ones"
        )
    kept = np.flatnonzero(found != NEW)
    order = kept[np.argsort(found[kept], kind="stable")]
    twice = np.flatnonzero(np.diff(found[order]) == 0)
    if len(twice):
        first, second = order[twice[0]] + 1, order[twice[0] + 1] + 1
        raise ValueError(f"{path}, lines {first} and {second}: class {found[first - 1]} can become one class only")
    return found


def map_names(old: Mapping[str, int], new: Mapping[str, int]) -> np.ndarray:
    """The class map of two sets of named identities: (C,) int64.

    Args:
        old, new: name -> class, the classes being 0 .. number - 1.
    """
    found = np.full(len(new), NEW, np.int64)
    for name, number in new.items():
        found[number] = old.get(name, NEW)
    return found


def _read_npy(path: str) -> np.ndarray:
    found = open_array(path)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ValueError(f"{path} holds {found.dtype} of shape {found.shape}, not integers (C,)")
    return found.astype(np.int64)


def _read_text(path: str) -> np.ndarray:
    numbers = array("q")
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                numbers.append(int(line))
            except (ValueError, OverflowError):
                raise ValueError(f"{path}, line {number}: {line.strip()[:40]!r} is no number of a class") from None
    return np.array(numbers, np.int64)
