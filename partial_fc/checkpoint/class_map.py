"""Class maps: from the classes of a training to the classes of a checkpoint with other identities.

A text file has one line per class of the training: the number of the class in the checkpoint, or -1 for a new class. A
.npy file has the same numbers as (C,) integers.

Shapes: C classes of the training.
"""

from array import array

import numpy as np

from partial_fc.utils.text import read_lines

from .arrays import open_array

NEW = -1


def read_class_map(path: str, num_classes: int, num_saved: int) -> np.ndarray:
    """Reads a class map: (C,) int64, -1 for a new class.

    Args:
        path: path of the file.
        num_classes: C.
        num_saved: number of classes in the checkpoint.

    Raises:
        OSError: The file cannot be read.
        ValueError: A line is not a number, a class is not in the checkpoint or occurs twice, or the number of lines is
            not C.
    """
    if path.endswith(".npy"):
        saved = open_array(path)
        if saved.ndim != 1 or saved.dtype.kind not in "iu":
            raise ValueError(f"{path} holds {saved.dtype} of shape {saved.shape}, expected integers of shape (C,)")
        class_map = saved.astype(np.int64)
    else:
        numbers = array("q")
        for number, line in enumerate(read_lines(path), 1):
            try:
                numbers.append(int(line))
            except (ValueError, OverflowError):
                raise ValueError(f"{path}, line {number}: {line.strip()[:40]!r} is not a class number") from None
        class_map = np.array(numbers, np.int64)
    if len(class_map) != num_classes:
        raise ValueError(f"{path} has {len(class_map)} lines, expected {num_classes}: one line per class")
    wrong = np.flatnonzero((class_map < NEW) | (class_map >= num_saved))
    if len(wrong):
        raise ValueError(
            f"{path}, line {wrong[0] + 1}: class {class_map[wrong[0]]} is not in the checkpoint, which has {num_saved} "
            "classes; use -1 for a new class"
        )
    known = np.flatnonzero(class_map != NEW)
    order = known[np.argsort(class_map[known], kind="stable")]
    twice = np.flatnonzero(np.diff(class_map[order]) == 0)
    if len(twice):
        first, second = order[twice[0]] + 1, order[twice[0] + 1] + 1
        raise ValueError(
            f"{path}, lines {first} and {second}: class {class_map[first - 1]} can be mapped to one class only"
        )
    return class_map
