"""Files of integers that are derived from a source file, and are valid while it is unchanged.

Layout: little-endian int64 words; the first three are the stamp of the source file.
"""

import os
from contextlib import suppress

import numpy as np

from partial_fc.utils.atomic_io import replacing
from partial_fc.utils.regular_files import open_regular

VERSION_BITS = 8  # low bits of a layout's number; files of other versions of the layout are replaced


def file_stamp(path: str, form: int) -> np.ndarray:
    """Returns (3,) int64: the number of the layout, and the size in bytes and the time in ns of the source file."""
    status = os.stat(path)
    return np.array([form, status.st_size, status.st_mtime_ns], "<i8")


def read_words(path: str, stamp: np.ndarray) -> np.ndarray | None:
    """Maps the words after the stamp; returns None if the file is missing, or its stamp differs."""
    try:
        with open_regular(path) as file:
            words = np.memmap(file, "<i8", mode="r")
    except (OSError, ValueError):  # missing, empty, or not a regular file
        return None
    is_current = len(words) > len(stamp) and (words[: len(stamp)] == stamp).all()
    return words[len(stamp) :] if is_current else None


def write_words(path: str, stamp: np.ndarray, *parts: np.ndarray) -> None:
    """Writes the stamp and the parts atomically.

    Does nothing if the folder is read-only, or the path is a file of another kind, which may belong to the user.
    """
    with suppress(OSError):
        with suppress(FileNotFoundError), open_regular(path) as file:
            layout = int.from_bytes(file.read(8), "little")
            if layout >> VERSION_BITS != int(stamp[0]) >> VERSION_BITS:
                return
        with replacing(path) as file:  # under a temporary name of its own, as other ranks may write it at the same time
            for part in (stamp, *parts):
                part.astype("<i8", copy=False).tofile(file)
            file.flush()
            os.fsync(file.fileno())
