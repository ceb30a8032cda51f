"""The centers of one rank and their momentum where they lie: in one MXNet array each, or in pieces.

Shapes: L classes of this rank, S some of them, T classes of a tile, E embedding.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import mxnet as mx
import numpy as np

from partial_fc.centers import center_blocks
from partial_fc.tiles import Tile, tiles_of

from .arithmetic import arithmetic_on

# Standard MXNet wheels index an array with 32 bits.
MAX_ELEMENTS = 2**31 - 1


class Piece(NamedTuple):
    """Some classes that follow one another, no more than one array holds."""

    weight: mx.nd.NDArray  # (rows, E) float32
    weight_mom: mx.nd.NDArray


class Centers:
    """Weight and momentum of L classes.

    Args:
        num_local: L.
        embedding_size: E.
        context: where they lie.

    Attributes:
        pieces: list of Piece; one of no rows where L = 0.
        piece_rows: rows of every piece but the last.
    """

    def __init__(self, num_local: int, embedding_size: int, context: mx.Context):
        self.num_local = num_local
        self.embedding_size = embedding_size
        self.context = context
        self.piece_rows = MAX_ELEMENTS // embedding_size
        self._arithmetic = arithmetic_on(context)
        rows = [min(num_local - row, self.piece_rows) for row in range(0, max(num_local, 1), self.piece_rows)]
        with empty_arrays(num_local):
            self.pieces = [Piece(*(self._zeros(count) for _ in Piece._fields)) for count in rows]

    def initialise(self, class_start: int, seed: int) -> None:
        """Draws the centers from N(0, 0.01), see center_blocks; block by block, as a second copy may not fit."""
        for number, piece in enumerate(self.pieces):
            start = class_start + number * self.piece_rows
            for row, centers in center_blocks(start, start + len(piece.weight), self.embedding_size, seed):
                piece.weight[row : row + len(centers)] = centers

    def read(self, tile: Tile, out: mx.nd.NDArray, field: str = "weight") -> mx.nd.NDArray:
        """Weight or momentum of a tile: the memory itself where its rows are a slice, else copied to out (T, E)."""
        array = getattr(self.pieces[tile.piece], field)
        return self._arithmetic.take(array, tile.rows, out) if tile.gathered else array[tile.rows]

    def write(self, tile: Tile, weight: mx.nd.NDArray, weight_mom: mx.nd.NDArray) -> None:
        """Takes back what :meth:`read` gave for a tile, after it was changed."""
        if tile.gathered:
            for array, rows in zip(self.pieces[tile.piece], (weight, weight_mom)):
                self._arithmetic.put(array, tile.rows, rows)

    def gather(self, index: np.ndarray, field: str = "weight") -> mx.nd.NDArray:
        """A copy (S, E) of the rows of a sorted index (S,), which may hold a row more than once."""
        with empty_arrays(len(index)):
            out = mx.nd.empty((len(index), self.embedding_size), ctx=self.context)
        for tile in self._by_piece(index):
            array = getattr(self.pieces[tile.piece], field)
            self._arithmetic.take(array, tile.rows, out[tile.start : tile.stop])
        return out

    def scatter(self, index: np.ndarray, weight: mx.nd.NDArray, weight_mom: mx.nd.NDArray) -> None:
        """Writes weight and momentum (S, E), of any context, to the rows of a sorted index (S,)."""
        for tile in self._by_piece(index):
            for array, rows in zip(self.pieces[tile.piece], (weight, weight_mom)):
                part = rows[tile.start : tile.stop].as_in_context(self.context)
                self._arithmetic.put(array, tile.rows, part)

    def _by_piece(self, index: np.ndarray) -> list[Tile]:
        return tiles_of(index, False, self.piece_rows, MAX_ELEMENTS)

    def _zeros(self, rows: int) -> mx.nd.NDArray:
        return mx.nd.zeros((rows, self.embedding_size), ctx=self.context)


def empty_arrays(rows: int):
    """Lets MXNet have arrays of no rows where a rank holds no class; it logs a warning, so only there."""
    return contextlib.nullcontext() if rows else mx.util.np_shape(True)
