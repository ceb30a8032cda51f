"""Storage of the centers of one rank and their momentum: in one MXNet array each, in several, or in files.

Shapes: L classes of this rank, S some of them, T classes of a tile, E embedding.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import mxnet as mx
import numpy as np

from partial_fc.layer.initializer import center_blocks
from partial_fc.layer.tiling import Tile, tiles_of
from partial_fc.utils.mmap_rows import RowFile, bank_files
from partial_fc_mxnet import collectives
from partial_fc_mxnet.ops.arithmetic import arithmetic_on

# Standard MXNet wheels index the elements of an array with 32 bits.
MAX_ELEMENTS = 2**31 - 1
# Bytes written to a file between two flushes: a small part of the memory, and long enough that the waits do not count.
FLUSH_BYTES = 256 << 20
LOG_SECONDS = 10.0


class Piece(NamedTuple):
    """Consecutive classes, at most as many as fit into one array.

    Attributes:
        weight: (rows, E) float32 centers.
        weight_mom: (rows, E) float32 momentum.
    """

    weight: mx.nd.NDArray
    weight_mom: mx.nd.NDArray


class CenterStorage:
    """Weight and momentum of L classes.

    Args:
        num_local: L.
        embedding_size: E.
        context: of the arrays; the CPU with ``folder``.
        folder: keeps the arrays in files in this folder, see utils/mmap_rows.py; None or empty keeps them in memory.
        sharing: number of banks of this size that are created in the folder at the same time.

    Attributes:
        pieces: list of Piece; a single one without rows if L = 0.
        piece_rows: rows of every piece but the last.
        files: (weight, momentum) RowFiles of each piece; empty without ``folder``.

    Raises:
        OSError: the folder is not writable, or has too little space for weight and momentum of all classes.
    """

    def __init__(
        self, num_local: int, embedding_size: int, context: mx.Context, folder: str | None = None, sharing: int = 1
    ):
        self.num_local = num_local
        self.embedding_size = embedding_size
        self.context = context
        self.piece_rows = MAX_ELEMENTS // embedding_size
        self._arithmetic = arithmetic_on(context)
        rows = [min(num_local - row, self.piece_rows) for row in range(0, max(num_local, 1), self.piece_rows)]
        self.files = bank_files(folder, rows, embedding_size, sharing) if folder and num_local else []
        if self.files:
            self._reader = ThreadPoolExecutor(1, thread_name_prefix="centers")
            self._requests: list[Future] = []
            self.pieces = [Piece(*(mx.nd.from_numpy(file.rows) for file in files)) for files in self.files]
        else:
            with empty_arrays(num_local):
                self.pieces = [Piece(*(self._zeros(count) for _ in Piece._fields)) for count in rows]

    def initialize(self, class_start: int, seed: int) -> None:
        """Draws the centers from N(0, 0.01), see center_blocks; in blocks, because a second copy may not fit."""
        for number, piece in enumerate(self.pieces):
            start = class_start + number * self.piece_rows
            self.fill(number, "weight", center_blocks(start, start + len(piece.weight), self.embedding_size, seed))

    def fill(self, number: int, field: str, blocks: Iterable[tuple[int, np.ndarray]]) -> None:
        """Writes consecutive rows of a piece, not faster than the disk, and logs the progress every LOG_SECONDS.

        Args:
            number: of the piece.
            field: "weight" or "weight_mom".
            blocks: (first row, (n, E) float32), in the order of the rows.
        """
        array = getattr(self.pieces[number], field)
        unflushed, logged = 0, time.monotonic()
        for row, values in blocks:
            array[row : row + len(values)] = values
            unflushed += values.nbytes
            if unflushed < FLUSH_BYTES:
                continue
            unflushed = 0
            array.wait_to_read()
            if self.files:
                self._file(number, field).flush()
            if time.monotonic() - logged > LOG_SECONDS:
                logged = time.monotonic()
                collectives.report_progress()
                filled = number * self.piece_rows + row + len(values)
                logging.info("wrote %s of %d of this rank's %d centers", field, filled, self.num_local)

    def prefetch(self, index: np.ndarray) -> None:
        """Starts to read the rows of a sorted index (S,) from the files, in the order in which a step needs them.

        A step with all classes reads each tile just before it needs it, see read.
        """
        if self.files and len(index) < self.num_local:
            for request in self._requests:  # left over if the step ended with an error
                request.cancel()
            self._requests = [
                self._reader.submit(self._file(tile.piece, field).prefetch, tile.row_index)
                for field in Piece._fields
                for tile in self._by_piece(index)
            ]

    @contextlib.contextmanager
    def sequential_access(self) -> Iterator[None]:
        """A context in which all rows are read from the first to the last."""
        with contextlib.ExitStack() as stack:
            for files in self.files:
                for file in files:
                    stack.enter_context(file.sequential_access())
            yield

    def read(self, tile: Tile, out: mx.nd.NDArray, field: str = "weight") -> mx.nd.NDArray:
        """Returns weight or momentum (T, E) of a tile: a view if its rows are a slice, otherwise a copy in ``out``."""
        array = getattr(self.pieces[tile.piece], field)
        if tile.gathered:
            return self._arithmetic.take(array, tile.row_index, out)
        if self.files:
            self._file(tile.piece, field).prefetch(tile.row_index)
        return array[tile.rows]

    def write(self, tile: Tile, rows: mx.nd.NDArray, field: str = "weight") -> None:
        """Writes back the updated rows (T, E) that :meth:`read` returned; a view needs no write."""
        if tile.gathered:
            self._arithmetic.put(getattr(self.pieces[tile.piece], field), tile.row_index, rows)

    def gather(self, index: np.ndarray, field: str = "weight") -> mx.nd.NDArray:
        """Returns a copy (S, E) of the rows of a sorted index (S,), which may contain duplicates."""
        with empty_arrays(len(index)):
            out = mx.nd.empty((len(index), self.embedding_size), ctx=self.context)
        for tile in self._by_piece(index):
            array = getattr(self.pieces[tile.piece], field)
            if self.files:  # before the requests of self.prefetch that are still queued
                self._file(tile.piece, field).prefetch(tile.row_index)
            self._arithmetic.take(array, tile.row_index, out[tile.start : tile.stop])
        return out

    def scatter(self, index: np.ndarray, weight: mx.nd.NDArray, weight_mom: mx.nd.NDArray) -> None:
        """Writes weight and momentum (S, E), in any context, to the rows of a sorted index (S,)."""
        for tile in self._by_piece(index):
            for array, rows in zip(self.pieces[tile.piece], (weight, weight_mom)):
                part = rows[tile.start : tile.stop].as_in_context(self.context)
                self._arithmetic.put(array, tile.row_index, part)

    def _by_piece(self, index: np.ndarray) -> list[Tile]:
        return tiles_of(index, False, self.piece_rows, MAX_ELEMENTS)

    def _file(self, number: int, field: str) -> RowFile:
        return self.files[number][Piece._fields.index(field)]

    def _zeros(self, rows: int) -> mx.nd.NDArray:
        return mx.nd.zeros((rows, self.embedding_size), ctx=self.context)


def empty_arrays(rows: int):
    """A context in which MXNet accepts arrays without rows if ``rows`` is 0; only then, as MXNet logs a warning."""
    return contextlib.nullcontext() if rows else mx.util.np_shape(True)
