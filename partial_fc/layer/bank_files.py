"""Keeps a rank's centers and their optimizer states in files, for a bank that does not fit into memory.

Shapes: L classes of this rank, S sampled classes, E embedding.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from partial_fc.utils.mmap_rows import RowFile, bank_files

from .tiling import tiles_of

# Bytes between two flushes: a small part of the memory, but so many that the waits take little of the time.
FLUSH_BYTES = 256 << 20
LOG_SECONDS = 10.0

Blocks = Iterable[tuple[int, np.ndarray]]  # (first row, (n, E) float32), in the order of the rows


class BankFiles:
    """Anonymous files of centers and states, which end with the process; see utils/mmap_rows.py.

    Args:
        folder: folder of the files, created if it is missing.
        num_local: L, at least 1.
        widths: for each field, how many numbers a class has; the centers first.
        piece_rows: rows per file. The bank is divided into pieces of this many rows.
        sharing: number of banks of this size that are created in the folder at the same time.
        narrow: fields with numbers of 16 bits, see RowFile.

    Attributes:
        pieces: for each piece, the RowFile of each field.

    Raises:
        OSError: the folder is not writable, or its disk has too little space for all fields of all classes.
    """

    def __init__(
        self,
        folder: str,
        num_local: int,
        widths: Mapping[str, int],
        piece_rows: int,
        sharing: int,
        narrow: Collection[str] = (),
    ):
        rows = [min(num_local - row, piece_rows) for row in range(0, num_local, piece_rows)]
        self.pieces = bank_files(folder, rows, widths, sharing, narrow)
        self._num_local, self._piece_rows = num_local, piece_rows
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="centers")
        self._requested = np.empty(0, np.int64)

    def file(self, number: int, field: str) -> RowFile:
        """Returns the file of a field of a piece."""
        return self.pieces[number][field]

    def expect_all_rows(self) -> None:
        """See RowFile.expect_all_rows."""
        for file in self._all_files():
            file.expect_all_rows()

    def prefetch(self, index: np.ndarray) -> None:
        """Starts reading the rows of a sorted index (S,), in the order in which a step needs them.

        Rows that the previous call has requested are not read again.
        """
        if len(index) == self._num_local:  # the step itself reads each tile just before it needs it
            return
        rows, self._requested = np.setdiff1d(index, self._requested, assume_unique=True), index.copy()
        for field in self.pieces[0]:
            for tile in tiles_of(rows, False, self._piece_rows, max(len(rows), 1)):
                self._reader.submit(self.file(tile.piece, field).prefetch, tile.row_index)

    @contextlib.contextmanager
    def sequential_access(self) -> Iterator[None]:
        """Context manager for reading all rows in order."""
        self._requested = np.empty(0, np.int64)  # no row is in memory afterwards
        with contextlib.ExitStack() as stack:
            for file in self._all_files():
                stack.enter_context(file.sequential_access())
            yield

    def _all_files(self) -> Iterator[RowFile]:
        for files in self.pieces:
            yield from files.values()


def consecutive(rows: np.ndarray, values: np.ndarray) -> Blocks:
    """Yields blocks of consecutive rows, for values (n, width) of ascending rows (n,)."""
    for run in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows) != 1) + 1):
        if len(run):
            yield int(rows[run[0]]), values[run]


def rate_limited(
    blocks: Blocks, field: str, num_local: int, flush: Callable[[], None], progress: Callable[[], None], start: int = 0
) -> Blocks:
    """Yields blocks no faster than the disk can write them, and logs the progress every LOG_SECONDS.

    Args:
        blocks: the blocks, which the caller writes to the bank.
        field: name of the field, for the log.
        num_local: L.
        flush: waits until the written blocks are on disk.
        progress: reports that this rank makes progress.
        start: this rank's row that the blocks call row 0.
    """
    unflushed, logged = 0, time.monotonic()
    for row, values in blocks:
        yield row, values
        unflushed += values.nbytes
        if unflushed < FLUSH_BYTES:
            continue
        unflushed = 0
        flush()
        if time.monotonic() - logged > LOG_SECONDS:
            logged = time.monotonic()
            progress()
            logging.info("wrote %s of %d of this rank's %d centers", field, start + row + len(values), num_local)
