"""Rows of numbers in files that are used like memory, for centers and momentum that do not fit into the memory.

The files have no names: their space is free again however the process ends, and no other process can meet them. What
is to stay has to be saved elsewhere.

Left alone, Linux reads the whole neighbourhood of a row at a page fault. What it has so read, or was given by write(),
it keeps in units of up to megabytes, and writes the whole unit back when one row of it changes (ext4 of Linux 6.18: 50
times what has changed). So these files are written through their memory alone, are told that they are read at random,
and after they were read in order they are forgotten.

Shapes: N rows, E numbers of a row, S some of the rows.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator

import numpy as np

# Of one request Linux reads no more than its read-ahead, by default 128 KiB.
REQUEST = 128 << 10


class RowFile:
    """Float32 rows in a file, zeros at first.

    Args:
        folder: where there is room.
        num_rows, width: N, at least 1, and E.
        reserve: takes the space on the disk now. Else pages take it when they are first written to, and a disk that is
            full by then ends the process with SIGBUS.

    Attributes:
        rows: (N, E) float32, the file itself.

    Raises:
        OSError: the folder cannot be written to, or has no room.
    """

    def __init__(self, folder: str, num_rows: int, width: int, reserve: bool):
        size = 4 * num_rows * width
        try:
            self._file = tempfile.TemporaryFile(dir=folder)
            if reserve:
                os.posix_fallocate(self._file.fileno(), 0, size)
            else:
                os.truncate(self._file.fileno(), size)
        except OSError as error:
            raise OSError(f"cannot make a file of {size} bytes in {folder}: {error.strerror}") from error
        self._map = mmap.mmap(self._file.fileno(), size)
        self._map.madvise(mmap.MADV_RANDOM)
        self.rows = np.frombuffer(self._map, np.float32).reshape(num_rows, width)

    @property
    def disk_bytes(self) -> int:
        """What the file takes of the disk."""
        return 512 * os.fstat(self._file.fileno()).st_blocks

    def prefetch(self, index: np.ndarray) -> None:
        """Has the disk read the rows of a sorted index (S,), side by side; comes back when the last are on their way.

        One thread's page faults wait for each other, which is some five times slower.
        """
        descriptor = self._file.fileno()
        starts, stops = page_runs(index, 4 * self.rows.shape[1])
        for start, stop in zip(starts.tolist(), stops.tolist()):
            for part in range(start, stop, REQUEST):
                os.posix_fadvise(descriptor, part, min(REQUEST, stop - part), os.POSIX_FADV_WILLNEED)

    def flush(self) -> None:
        """Waits until everything that has been written is on the disk."""
        os.fdatasync(self._file.fileno())

    @contextlib.contextmanager
    def sequential_access(self) -> Iterator[None]:
        """For reading all rows from the first to the last."""
        self._map.madvise(mmap.MADV_SEQUENTIAL)
        try:
            yield
        finally:
            self._map.madvise(mmap.MADV_RANDOM)
            self._forget()

    def _forget(self) -> None:
        """Keeps no page in memory: neither mapped, nor changed, which is what lets the kernel drop it."""
        self._map.madvise(mmap.MADV_DONTNEED)
        self.flush()
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bank_files(folder: str, num_rows: list[int], width: int, sharing: int) -> list[tuple[RowFile, RowFile]]:
    """Files for the weights and the momentum of a bank.

    Weights are written at once and take their space now, momentum when a row is first trained.

    Args:
        folder: is made where it is missing.
        num_rows: of each piece of the bank.
        width: E.
        sharing: banks of this size that are made in the folder at the same time, by the ranks of this host.

    Raises:
        OSError: the folder cannot be written to, or has no room for all of that.
    """
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot make the folder {folder}: {error.strerror}") from error
    weight_bytes = 4 * sum(num_rows) * width
    later_bytes = weight_bytes * sharing  # momentum, of which no rank has taken anything yet
    _require(folder, weight_bytes + later_bytes)
    weights = [RowFile(folder, rows, width, reserve=True) for rows in num_rows]
    # Once more: of the ranks that have looked at the same time, the last one sees what all have taken.
    _require(folder, later_bytes)
    return [(weight, RowFile(folder, len(weight.rows), width, reserve=False)) for weight in weights]


def _require(folder: str, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            f"centers and momentum need {needed:,} more bytes in {folder}, which has {free:,} bytes free: "
            "make room, or set bank_folder to a larger disk"
        )


def page_runs(index: np.ndarray, row_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the pages are that hold rows of a file.

    Args:
        index: (S,) int64, sorted.

    Returns:
        (starts, stops) in bytes of pages that follow one another, each run as long as it can be, both int64.
    """
    first = index * row_bytes // mmap.PAGESIZE
    behind = -(-(index + 1) * row_bytes // mmap.PAGESIZE)
    apart = first[1:] > behind[:-1]
    starts, stops = (np.append(True, apart), np.append(apart, True)) if len(index) else (apart, apart)
    return first[starts] * mmap.PAGESIZE, behind[stops] * mmap.PAGESIZE
