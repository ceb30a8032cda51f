"""The centers of one rank and the states of their optimizer in files, for a bank that does not fit into memory.

Shapes: L classes of this rank, S some of them, E embedding.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from partial_fc.utils.mmap_rows import RowFile, bank_files

from .tiling import tiles_of

# Bytes written between two flushes: a small part of the memory, and long enough that the waits do not count.
FLUSH_BYTES = 256 << 20
LOG_SECONDS = 10.0

Blocks = Iterable[tuple[int, np.ndarray]]  # (first row, (n, E) float32), in the order of the rows


class BankFiles:
    """Files of centers and states, see utils/mmap_rows.py; they have no names and end with the process.

    Args:
        folder: is created if it is missing.
        num_local: L, at least 1.
        widths: numbers per class of each field, the centers first.
        piece_rows: rows of a file; the bank is divided into pieces of so many rows.
        sharing: number of banks of this size that are created in the folder at the same time.

    Attributes:
        pieces: RowFiles of each piece, by field.

    Raises:
        OSError: the folder is not writable, or has too little space for all fields of all classes.
    """

    def __init__(self, folder: str, num_local: int, widths: Mapping[str, int], piece_rows: int, sharing: int):
        rows = [min(num_local - row, piece_rows) for row in range(0, num_local, piece_rows)]
        self.pieces = bank_files(folder, rows, widths, sharing)
        self._num_local, self._piece_rows = num_local, piece_rows
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="centers")
        self._requested = np.empty(0, np.int64)

    def file(self, number: int, field: str) -> RowFile:
        """Returns the file of a piece with a field."""
        return self.pieces[number][field]

    def expect_all_rows(self) -> None:
        """See RowFile.expect_all_rows."""
        for file in self._all_files():
            file.expect_all_rows()

    def prefetch(self, index: np.ndarray) -> None:
        """Starts to read the rows of a sorted index (S,), in the order in which a step needs them.

        Rows of the last call are not read again. Of all rows it reads none: those of a tile are read just before a step
        needs them.
        """
        if len(index) == self._num_local:
            return
        rows, self._requested = np.setdiff1d(index, self._requested, assume_unique=True), index.copy()
        for field in self.pieces[0]:
            for tile in tiles_of(rows, False, self._piece_rows, max(len(rows), 1)):
                self._reader.submit(self.file(tile.piece, field).prefetch, tile.row_index)

    @contextlib.contextmanager
    def sequential_access(self) -> Iterator[None]:
        """A context in which all rows are read from the first to the last."""
        self._requested = np.empty(0, np.int64)  # no row is in memory after that
        with contextlib.ExitStack() as stack:
            for file in self._all_files():
                stack.enter_context(file.sequential_access())
            yield

    def _all_files(self) -> Iterator[RowFile]:
        for files in self.pieces:
            yield from files.values()


def consecutive(rows: np.ndarray, values: np.ndarray) -> Blocks:
    """Yields the values (n, width) of ascending rows (n,) as blocks of consecutive rows."""
    for run in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows) != 1) + 1):
        if len(run):
            yield int(rows[run[0]]), values[run]


def rate_limited(
    blocks: Blocks, field: str, num_local: int, flush: Callable[[], None], progress: Callable[[], None], start: int = 0
) -> Blocks:
    """Yields blocks that the caller writes, not faster than the disk, and logs the progress every LOG_SECONDS.

    ``flush`` waits until what the caller has written is on the disk; ``progress`` reports that this rank is alive. Row
    0 of the blocks is the row ``start`` of the rank.
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
