"""How a step walks through its class centers: some at a time, so that their logits never need exist all at once.

Shapes: G global batch, L classes of this rank, S centers of a step on this rank, E embedding, T centers of a tile.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# What a tile's centers, their gradient and their logits may take. On a CPU products of 1,000 to 4,000 classes run
# at full speed and still leave their results near the core; a GPU wants work for all of its units in every call.
TILE_BYTES = {"cpu": 12 << 20, "gpu": 256 << 20}

# What a step keeps from its first walk for its second, in MiB: room for the logits of 128 images and 500,000 classes.
LOGITS_CACHE_MB = 256


class Tile(NamedTuple):
    """The centers ``start`` .. ``stop``-1 of a step, all of one piece of the bank.

    Attributes:
        start, stop: columns among the S.
        piece: number of the piece.
        rows: rows of that piece; a slice where they follow one another, else (T,) int64.
    """

    start: int
    stop: int
    piece: int
    rows: slice | np.ndarray

    @property
    def gathered(self) -> bool:
        """Whether its rows have to be brought together."""
        return not isinstance(self.rows, slice)


def tile_classes(batch: int, embedding_size: int, device: str) -> int:
    """Classes of a tile that suit a device.

    Args:
        batch: G.
        embedding_size: E.
        device: "cpu" or "gpu".
    """
    bytes_of_class = 4 * (2 * embedding_size + batch)
    return max(64, TILE_BYTES[device] // bytes_of_class // 64 * 64)


def tiles_of(local_index: np.ndarray, every: bool, piece_rows: int, size: int) -> list[Tile]:
    """Divides the centers of a step into tiles of at most ``size``, none of which reaches over two pieces.

    Args:
        local_index: (S,) sorted local indices.
        every: they are 0 .. S-1, so that the rows of a tile are a slice.
        piece_rows: rows of a piece of the bank, the last one may have fewer.
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
    """Where the targets of a batch stand in each tile.

    Args:
        column: (G,) column of each row's target among the S, -1 where it is not here.
        tiles: of :func:`tiles_of`.

    Returns:
        For each tile (rows of the batch, columns of the tile), both int64.
    """
    order = np.argsort(column, kind="stable")
    borders = np.searchsorted(column[order], [tile.start for tile in tiles] + [tile.stop for tile in tiles[-1:]])
    rows = [order[low:high] for low, high in zip(borders[:-1], borders[1:])]
    return [(row, column[row] - tile.start) for row, tile in zip(rows, tiles)]
