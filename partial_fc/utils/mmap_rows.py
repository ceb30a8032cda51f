"""Rows of numbers in memory-mapped files, for centers and momentum that do not fit into memory.

The files are anonymous: their space is released however the process ends, and no other process can open them.

By default Linux reads the neighborhood of a row at a page fault. It keeps what it has read in this way, or received by
write(), in units of up to megabytes, and writes the whole unit back when one row of it changes (ext4 of Linux 6.18: 50
times the changed bytes). So these files are written only through the mapping, with MADV_RANDOM, and are dropped from
the page cache after a sequential pass. A training that changes all rows has nothing to lose, see expect_all_rows.

Shapes: N rows, E numbers of a row, S selected rows.
"""

import contextlib
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping

import numpy as np

# Linux limits a request to its read-ahead, by default 128 KiB.
REQUEST = 128 << 10


class RowFile:
    """Float32 rows in a file, initially zeros.

    Args:
        folder: folder of the file.
        num_rows, width: N, at least 1, and E.
        reserve: allocate the space on the disk now. Else pages are allocated when they are first written, and a disk
            that is full by then ends the process with SIGBUS.

    Attributes:
        rows: (N, E) float32, a view of the file.

    Raises:
        OSError: the folder cannot be written to, or has no space.
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
            raise OSError(f"cannot create a file of {size} bytes in {folder}: {error.strerror}") from error
        self._map = mmap.mmap(self._file.fileno(), size)
        self._usual = mmap.MADV_RANDOM
        self._map.madvise(self._usual)
        self.rows = np.frombuffer(self._map, np.float32).reshape(num_rows, width)

    @property
    def disk_bytes(self) -> int:
        """Bytes that the file occupies on the disk."""
        return 512 * os.fstat(self._file.fileno()).st_blocks

    def prefetch(self, index: np.ndarray) -> None:
        """Starts reading the rows of a sorted index (S,) in parallel; returns when the last requests are queued.

        Page faults of one thread would be sequential, which is some five times slower.
        """
        descriptor = self._file.fileno()
        starts, stops = page_runs(index, 4 * self.rows.shape[1])
        for start, stop in zip(starts.tolist(), stops.tolist()):
            for part in range(start, stop, REQUEST):
                os.posix_fadvise(descriptor, part, min(REQUEST, stop - part), os.POSIX_FADV_WILLNEED)

    def expect_all_rows(self) -> None:
        """Makes the kernel read ahead, because all rows are read and written from the first to the last."""
        self._usual = mmap.MADV_SEQUENTIAL
        self._map.madvise(self._usual)

    def flush(self) -> None:
        """Waits until all changes are on the disk."""
        os.fdatasync(self._file.fileno())

    @contextlib.contextmanager
    def sequential_access(self) -> Iterator[None]:
        """Context for reading all rows from the first to the last."""
        self._map.madvise(mmap.MADV_SEQUENTIAL)
        try:
            yield
        finally:
            self._map.madvise(self._usual)
            self.drop_pages()

    def drop_pages(self) -> None:
        """Drops all pages from memory. The kernel drops only pages that are neither mapped nor dirty."""
        self._map.madvise(mmap.MADV_DONTNEED)
        self.flush()
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bank_files(folder: str, num_rows: list[int], widths: Mapping[str, int], sharing: int) -> list[dict[str, RowFile]]:
    """Creates files for the fields of a bank: its centers, and the states of their optimizer.

    The first field is written at once and allocates its space now, the others when a row is first trained. ``num_rows``
    are those of each piece of the bank, ``widths`` the numbers per row of each field; ``sharing`` banks of this size
    are created in the folder at the same time by the ranks of this host.

    Returns:
        The file of each field, for each piece.

    Raises:
        OSError: the folder cannot be written to, or has not enough space for all of them.
    """
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot create the folder {folder}: {error.strerror}") from error
    first, *later = widths.values()
    later_bytes = 4 * sum(num_rows) * sum(later) * sharing  # of which no rank has allocated anything yet
    _require(folder, 4 * sum(num_rows) * first + later_bytes)
    pieces = [
        {
            field: RowFile(folder, rows, width, reserve=number == 0)
            for number, (field, width) in enumerate(widths.items())
        }
        for rows in num_rows
    ]
    # Checked again: of ranks that check at the same time, the last one sees what all have allocated.
    _require(folder, later_bytes)
    return pieces


def _require(folder: str, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            f"the centers and their optimizer need {needed:,} more bytes in {folder}, which has {free:,} bytes free: "
            "free space there, or set bank_folder to a larger disk"
        )


def page_runs(index: np.ndarray, row_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (starts, stops) in bytes, int64, of the longest runs of pages that contain some rows of a file.

    Args:
        index: (S,) int64, sorted.
        row_bytes: bytes of a row.
    """
    first = index * row_bytes // mmap.PAGESIZE
    stop = -(-(index + 1) * row_bytes // mmap.PAGESIZE)
    apart = first[1:] > stop[:-1]
    starts, stops = (np.append(True, apart), np.append(apart, True)) if len(index) else (apart, apart)
    return first[starts] * mmap.PAGESIZE, stop[stops] * mmap.PAGESIZE
