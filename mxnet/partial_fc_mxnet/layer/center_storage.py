"""Storage of one rank's centers and their momentum: each in one MXNet array, in several arrays, or in files.

Shapes: L classes of this rank, S some of them, T classes of a tile, E embedding.
"""

import contextlib
from typing import NamedTuple

import mxnet as mx
import numpy as np

from partial_fc.layer.bank_files import BankFiles, Blocks, rate_limited
from partial_fc.layer.center_states import CENTER_STATES, center_widths
from partial_fc.layer.initializer import center_blocks
from partial_fc.layer.tiling import Tile, tiles_of
from partial_fc_mxnet.collectives import default_collectives
from partial_fc_mxnet.ops.arithmetic import arithmetic_on

# Standard MXNet wheels index the elements of an array with 32 bits.
MAX_ELEMENTS = 2**31 - 1


class Piece(NamedTuple):
    """Consecutive classes that fit into one array."""

    weight: mx.nd.NDArray  # (rows, E) float32 centers
    weight_mom: mx.nd.NDArray  # (rows, E) float32 momentum


class CenterStorage:
    """Weight and momentum of L classes.

    Args:
        num_local: L.
        embedding_size: E.
        context: holds the arrays; the CPU with ``folder``.
        folder: keeps the arrays in files in this folder, see BankFiles; None or empty keeps them in memory.
        sharing: number of banks of this size that are created in the folder at the same time.

    Attributes:
        pieces: list of Piece; a single one without rows if L = 0.
        piece_rows: rows of every piece but the last.
        widths: field of a Piece -> numbers per class.
        files: BankFiles; None without ``folder``.

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
        widths = self.widths = center_widths(embedding_size, CENTER_STATES["sgd"])
        self.files = BankFiles(folder, num_local, widths, self.piece_rows, sharing) if folder and num_local else None
        if self.files:
            self.pieces = [
                Piece(**{field: mx.nd.from_numpy(file.rows) for field, file in files.items()})
                for files in self.files.pieces
            ]
        else:
            rows = [min(num_local - row, self.piece_rows) for row in range(0, max(num_local, 1), self.piece_rows)]
            with empty_arrays(num_local):
                self.pieces = [
                    Piece(*(mx.nd.zeros((count, embedding_size), ctx=context) for _ in Piece._fields)) for count in rows
                ]

    def initialize(self, class_start: int, seed: int) -> None:
        """Initializes the centers block by block, because a second copy may not fit into memory."""
        for number, piece in enumerate(self.pieces):
            start = class_start + number * self.piece_rows
            self.copy_rows(number, "weight", center_blocks(start, start + len(piece.weight), self.embedding_size, seed))

    def copy_rows(self, number: int, field: str, blocks: Blocks) -> None:
        """Writes blocks of consecutive rows to a field, "weight" or "weight_mom", of a piece, see rate_limited."""
        array = getattr(self.pieces[number], field)

        def flush() -> None:
            array.wait_to_read()
            if self.files:
                self.files.file(number, field).flush()

        start = number * self.piece_rows
        for row, values in rate_limited(
            blocks, field, self.num_local, flush, default_collectives.report_progress, start
        ):
            array[row : row + len(values)] = values

    def prefetch(self, index: np.ndarray) -> None:
        """Starts to read the rows of a sorted index (S,) from the files, see BankFiles.prefetch."""
        if self.files:
            self.files.prefetch(index)

    def read(self, tile: Tile, out: mx.nd.NDArray, field: str = "weight") -> mx.nd.NDArray:
        """Returns weight or momentum (T, E) of a tile: a view if its rows are a slice, otherwise a copy in ``out``."""
        array = getattr(self.pieces[tile.piece], field)
        if tile.gathered:
            return self._arithmetic.gather(array, tile.row_index, out)
        if self.files:
            self.files.file(tile.piece, field).prefetch(tile.row_index)
        return array[tile.rows]

    def write(self, tile: Tile, rows: mx.nd.NDArray, field: str = "weight") -> None:
        """Writes back the updated rows (T, E) that `read` returned; a view needs no write."""
        if tile.gathered:
            self._arithmetic.scatter(getattr(self.pieces[tile.piece], field), tile.row_index, rows)

    def gather(self, index: np.ndarray, field: str = "weight") -> mx.nd.NDArray:
        """Returns a copy (S, E) of the rows of a sorted index (S,), which may contain duplicates."""
        with empty_arrays(len(index)):
            out = mx.nd.empty((len(index), self.embedding_size), ctx=self.context)
        for tile in self._by_piece(index):
            array = getattr(self.pieces[tile.piece], field)
            if self.files:  # ahead of the queued requests of CenterStorage.prefetch
                self.files.file(tile.piece, field).prefetch(tile.row_index)
            self._arithmetic.gather(array, tile.row_index, out[tile.start : tile.stop])
        return out

    def scatter(self, index: np.ndarray, weight: mx.nd.NDArray, weight_mom: mx.nd.NDArray) -> None:
        """Writes weight and momentum (S, E), in any context, to the rows of a sorted index (S,)."""
        for tile in self._by_piece(index):
            for array, rows in zip(self.pieces[tile.piece], (weight, weight_mom)):
                part = rows[tile.start : tile.stop].as_in_context(self.context)
                self._arithmetic.scatter(array, tile.row_index, part)

    def _by_piece(self, index: np.ndarray) -> list[Tile]:
        return tiles_of(index, False, self.piece_rows, MAX_ELEMENTS)


def empty_arrays(rows: int):
    """Returns a context in which MXNet accepts arrays without rows; only for 0 ``rows``, as MXNet logs a warning."""
    return contextlib.nullcontext() if rows else mx.util.np_shape(True)
