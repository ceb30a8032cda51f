"""Files of integers that are made from another file, and are used while that one is the same.

Layout: little-endian int64 words, the first three of which are the stamp of the other file.
"""

import os
from contextlib import suppress

import numpy as np

from partial_fc.utils.atomic_io import replacing
from partial_fc.utils.regular_files import open_regular

VERSION_BITS = 8  # of the number for a layout: what earlier versions have written is replaced


def file_stamp(path: str, form: int) -> np.ndarray:
    """Returns (3,) int64: a number for the layout, and the size in bytes and time in ns of the file at `path`."""
    status = os.stat(path)
    return np.array([form, status.st_size, status.st_mtime_ns], "<i8")


def read_words(path: str, stamp: np.ndarray) -> np.ndarray | None:
    """Maps the words after the stamp, None if the file is missing or was made from another one."""
    try:
        with open_regular(path) as file:
            words = np.memmap(file, "<i8", mode="r")
    except (OSError, ValueError):  # missing, empty, or no file
        return None
    is_current = len(words) > len(stamp) and (words[: len(stamp)] == stamp).all()
    return words[len(stamp) :] if is_current else None


def write_words(path: str, stamp: np.ndarray, *parts: np.ndarray) -> None:
    """Writes the stamp and the parts atomically; neither a read-only folder nor a file of the user's is an error."""
    with suppress(OSError):
        there = stamp[:1]
        with suppress(FileNotFoundError), open_regular(path) as file:
            there = np.frombuffer(file.read(8).ljust(8, b"\0"), "<i8")
        if (there >> VERSION_BITS).tolist() != (stamp[:1] >> VERSION_BITS).tolist():
            return
        with replacing(path) as file:  # other ranks may write it at the same time, under names of their own
            for part in (stamp, *parts):
                part.astype("<i8", copy=False).tofile(file)
            file.flush()
            os.fsync(file.fileno())
