"""Divides the class centers of a step into tiles, so that not all logits are in memory at once.

Shapes: G global batch, L classes of this rank, S centers of a step on this rank, E embedding, T centers of a tile.
"""

from typing import NamedTuple

import numpy as np

# Upper limit of the size of a tile's centers, gradients and logits. On a CPU, products with 1,000 to 4,000 classes run
# at full speed and leave their results in the cache. On a GPU, every call should use all of its units.
TILE_BYTES = {"cpu": 12 << 20, "gpu": 256 << 20}

# Default limit of the logits that are cached between forward and backward pass: 128 images times 500,000 classes.
LOGITS_CACHE_MB = 256


class Tile(NamedTuple):
    """The centers ``start`` .. ``stop``-1 of a step, all in the same piece of the bank."""

    start: int  # first column, 0 .. S-1
    stop: int
    piece: int  # number of the piece
    rows: slice | np.ndarray  # rows of the piece: a slice if the step has all centers, otherwise (T,) int64

    @property
    def gathered(self) -> bool:
        """Whether the rows must be gathered into a contiguous array."""
        return not isinstance(self.rows, slice)

    @property
    def row_index(self) -> np.ndarray:
        """``rows`` as (T,) int64."""
        return np.arange(self.rows.start, self.rows.stop) if isinstance(self.rows, slice) else self.rows


def tile_classes(batch: int, embedding_size: int, device: str) -> int:
    """Returns the number of classes per tile for the device "cpu" or "gpu", a multiple of 64."""
    return max(64, TILE_BYTES[device] // bytes_of_class(batch, embedding_size) // 64 * 64)


def bytes_of_class(batch: int, embedding_size: int) -> int:
    """Returns the bytes of a class in a tile, for its center, the center's gradient, and its logits."""
    return 4 * (2 * embedding_size + batch)


def tiles_of(local_index: np.ndarray, contiguous: bool, piece_rows: int, size: int) -> list[Tile]:
    """Divides the centers of a step into tiles, each in a single piece of the bank.

    Args:
        local_index: (S,) sorted local indices.
        contiguous: whether the indices are 0 .. S-1. Then the rows of a tile are a slice.
        piece_rows: rows per piece of the bank; the last piece may have fewer.
        size: T, the maximum number of centers per tile.
    """
    tiles = []
    last_piece = local_index[-1] // piece_rows if len(local_index) else -1
    for piece in range(last_piece + 1):
        first_row = piece * piece_rows
        start, stop = np.searchsorted(local_index, [first_row, first_row + piece_rows]).tolist()
        for low in range(start, stop, size):
            high = min(low + size, stop)
            rows = slice(low - first_row, high - first_row) if contiguous else local_index[low:high] - first_row
            tiles.append(Tile(low, high, piece, rows))
    return tiles


def targets_by_tile(column: np.ndarray, tiles: list[Tile]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns for each tile the targets in it, as (rows of the batch, columns of the tile), both int64.

    Args:
        column: (G,), the column of each row's target, 0 .. S-1, or -1 if it is not sampled.
        tiles: the tiles of the step.
    """
    order = np.argsort(column, kind="stable")
    borders = np.searchsorted(column[order], [tile.start for tile in tiles] + [tile.stop for tile in tiles[-1:]])
    rows = [order[low:high] for low, high in zip(borders[:-1], borders[1:])]
    return [(row, column[row] - tile.start) for row, tile in zip(rows, tiles)]
