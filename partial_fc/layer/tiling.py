"""The division of the class centers of a step into tiles, so that not all logits have to exist at once.

Shapes: G global batch, L classes of this rank, S centers of a step on this rank, E embedding, T centers of a tile.
"""

from typing import NamedTuple

import numpy as np

# Upper limit of the size of a tile's centers, gradients and logits. On a CPU, products with 1,000 to 4,000 classes run
# at full speed and leave their results in the cache; on a GPU, every call should occupy all of its units.
TILE_BYTES = {"cpu": 12 << 20, "gpu": 256 << 20}

# Default limit of the logits cached between forward and backward pass, in MiB: 128 images times 500,000 classes.
LOGITS_CACHE_MB = 256


class Tile(NamedTuple):
    """The centers ``start`` .. ``stop``-1 of a step, all in the same piece of the bank."""

    start: int  # column among the S
    stop: int
    piece: int  # number of the piece
    rows: slice | np.ndarray  # of the piece; a slice if the step has all centers, otherwise (T,) int64

    @property
    def gathered(self) -> bool:
        """Whether the rows have to be gathered into a contiguous array."""
        return not isinstance(self.rows, slice)

    @property
    def row_index(self) -> np.ndarray:
        """``rows`` as (T,) int64."""
        return np.arange(self.rows.start, self.rows.stop) if isinstance(self.rows, slice) else self.rows


def tile_classes(batch: int, embedding_size: int, device: str) -> int:
    """Returns the number of classes of a tile for a global batch G that suits "cpu" or "gpu", a multiple of 64."""
    return max(64, TILE_BYTES[device] // bytes_of_class(batch, embedding_size) // 64 * 64)


def bytes_of_class(batch: int, embedding_size: int) -> int:
    """Returns the bytes of a class in a tile: of its center, of the gradient of that, and of its logits."""
    return 4 * (2 * embedding_size + batch)


def tiles_of(local_index: np.ndarray, every: bool, piece_rows: int, size: int) -> list[Tile]:
    """Divides the centers of a step into tiles of at most ``size``, each in a single piece of the bank.

    Args:
        local_index: (S,) sorted local indices.
        every: whether the indices are 0 .. S-1, so that the rows of a tile are a slice.
        piece_rows: rows of a piece of the bank; the last piece may have fewer.
        size: T.
    """
    tiles = []
    last_piece = local_index[-1] // piece_rows if len(local_index) else -1
    for piece in range(last_piece + 1):
        first_row = piece * piece_rows
        start, stop = np.searchsorted(local_index, [first_row, first_row + piece_rows]).tolist()
        for low in range(start, stop, size):
            high = min(low + size, stop)
            rows = slice(low - first_row, high - first_row) if every else local_index[low:high] - first_row
            tiles.append(Tile(low, high, piece, rows))
    return tiles


def targets_by_tile(column: np.ndarray, tiles: list[Tile]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns, for each tile, the (rows of the batch, columns of the tile) of the targets in it, both int64.

    ``column``: (G,) column of each row's target among the S, -1 if it is not among them.
    """
    order = np.argsort(column, kind="stable")
    borders = np.searchsorted(column[order], [tile.start for tile in tiles] + [tile.stop for tile in tiles[-1:]])
    rows = [order[low:high] for low, high in zip(borders[:-1], borders[1:])]
    return [(row, column[row] - tile.start) for row, tile in zip(rows, tiles)]
