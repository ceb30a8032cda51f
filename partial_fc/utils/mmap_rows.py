"""Rows of numbers in memory-mapped files, for centers and momentum that do not fit into memory.

The files are anonymous: the space is released however the process ends, and no other process can open them.

By default, a page fault makes Linux read the neighborhood of a row. The page cache keeps data that was read this way,
or written by write(), in units of up to megabytes, and writes a whole unit back when one row in it changes (50 times
the changed bytes on ext4 of Linux 6.18). So these files are written through the mapping only, with MADV_RANDOM, and
are dropped from the page cache after each sequential pass. A training that changes all rows anyway calls
expect_all_rows().

Shapes: N rows, E numbers per row, S selected rows.
"""

import contextlib
import mmap
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping

import numpy as np

# Linux limits a read request to the read-ahead size, by default 128 KiB.
REQUEST = 128 << 10


class RowFile:
    """Rows of numbers in a file, initially zero.

    Args:
        folder: folder of the file.
        num_rows, width: N, at least 1, and E.
        reserve: whether to allocate the disk space now. Otherwise pages are allocated at the first write, and a full
            disk then ends the process with SIGBUS.
        dtype: type of the numbers; uint16 for the bits of bfloat16, which NumPy does not have.

    Attributes:
        rows: (N, E), a view of the file.

    Raises:
        OSError: the folder cannot be written to, or has no space.
    """

    def __init__(self, folder: str, num_rows: int, width: int, reserve: bool, dtype: type = np.float32):
        size = np.dtype(dtype).itemsize * num_rows * width
        try:
            self._file = tempfile.TemporaryFile(dir=folder)
            if reserve:
                os.posix_fallocate(self._file.fileno(), 0, size)
            else:
                os.truncate(self._file.fileno(), size)
        except OSError as error:
            raise OSError(f"cannot create a file of {size} bytes in {folder}: {error.strerror}") from error
        self._map = mmap.mmap(self._file.fileno(), size)
        self._usual_advice = mmap.MADV_RANDOM
        self._map.madvise(self._usual_advice)
        self.rows: np.ndarray = np.frombuffer(self._map, dtype).reshape(num_rows, width)

    @property
    def disk_bytes(self) -> int:
        """Bytes that the file occupies on the disk."""
        return 512 * os.fstat(self._file.fileno()).st_blocks

    def prefetch(self, index: np.ndarray) -> None:
        """Starts parallel reads of the rows of a sorted index (S,); returns when all requests are queued.

        Page faults of a single thread are sequential, which takes five times as long.
        """
        descriptor = self._file.fileno()
        starts, stops = page_runs(index, self.rows.itemsize * self.rows.shape[1])
        for start, stop in zip(starts.tolist(), stops.tolist()):
            for part in range(start, stop, REQUEST):
                os.posix_fadvise(descriptor, part, min(REQUEST, stop - part), os.POSIX_FADV_WILLNEED)

    def expect_all_rows(self) -> None:
        """Enables read-ahead, for programs that read and write all rows in order."""
        self._usual_advice = mmap.MADV_SEQUENTIAL
        self._map.madvise(self._usual_advice)

    def flush(self) -> None:
        """Waits until all changes are on disk."""
        os.fdatasync(self._file.fileno())

    @contextlib.contextmanager
    def sequential_access(self) -> Iterator[None]:
        """Context manager for reading all rows in order."""
        self._map.madvise(mmap.MADV_SEQUENTIAL)
        try:
            yield
        finally:
            self._map.madvise(self._usual_advice)
            self.drop_pages()

    def drop_pages(self) -> None:
        """Drops all pages from memory."""
        self._map.madvise(mmap.MADV_DONTNEED)  # the kernel drops only pages that are neither mapped nor dirty
        self.flush()
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bank_files(
    folder: str, num_rows: list[int], widths: Mapping[str, int], sharing: int, narrow: Collection[str] = ()
) -> list[dict[str, RowFile]]:
    """Creates files for the fields of a bank: the centers and their optimizer states.

    The first field allocates its disk space now, because all its rows are written at the start. The others allocate
    space when a row is first trained.

    Args:
        folder: folder of the files.
        num_rows: number of rows of each piece of the bank.
        widths: numbers per row of each field.
        sharing: number of ranks that create banks of this size in the folder at the same time.
        narrow: fields with numbers of 16 bits, see RowFile; float32 for the others.

    Returns:
        For each piece, the file of each field.

    Raises:
        OSError: the folder cannot be written to, or its disk has too little space for all banks.
    """
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot create the folder {folder}: {error.strerror}") from error
    dtypes = {field: np.uint16 if field in narrow else np.float32 for field in widths}
    first, *later = (width * np.dtype(dtypes[field]).itemsize for field, width in widths.items())
    later_bytes = sum(num_rows) * sum(later) * sharing  # not yet allocated by any rank
    _require(folder, sum(num_rows) * first + later_bytes)
    pieces = [
        {
            field: RowFile(folder, rows, width, reserve=number == 0, dtype=dtypes[field])
            for number, (field, width) in enumerate(widths.items())
        }
        for rows in num_rows
    ]
    # Check again: ranks may have checked at the same time. The last one sees what all of them have allocated.
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
    """Returns the byte offsets (starts, stops) of the runs of adjacent pages that contain the selected rows.

    Args:
        index: (S,) int64, sorted.
        row_bytes: bytes per row.
    """
    first = index * row_bytes // mmap.PAGESIZE
    stop = -(-(index + 1) * row_bytes // mmap.PAGESIZE)
    apart = first[1:] > stop[:-1]
    starts, stops = (np.append(True, apart), np.append(apart, True)) if len(index) else (apart, apart)
    return first[starts] * mmap.PAGESIZE, stop[stops] * mmap.PAGESIZE
