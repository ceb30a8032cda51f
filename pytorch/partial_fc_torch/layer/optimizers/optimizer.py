"""The interface of optimizers of the centers, which update the rows of a step and their states.

Shapes: N rows, T rows of a tile, E embedding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..rows import Centers, RowIndex, TileGradient, gather_rows

BLOCK_NUMBERS = 2**18  # elements of a block of each array; with temporaries, a block fits into the cache


class RowOptimizer:
    """Updates the centers of a step tile by tile, in place; other rows do not change.

    A subclass defines `update_rows`.

    Attributes:
        states: name -> whether a center's state has E elements (True) or one (False). States are float32 and initially
            0. The names are also names of attributes of the layer, and of files.
    """

    states: Mapping[str, bool] = {}

    def update(self, centers: Centers, gradient: TileGradient, learning_rate: float) -> None:
        """Updates one tile.

        Args:
            centers: the arrays that contain the tile's rows.
            gradient: gradient of the tile; its arrays are overwritten.
            learning_rate: rate of this step.
        """
        for block in self._blocks(gradient):
            values = block.values()  # first, so that its temporary is freed before states are copied
            # A slice selects views; other rows are copies, which must be written back.
            states = {name: gather_rows(state, block.rows) for name, state in centers.states.items()}
            self.update_rows(block.weight, values, states, learning_rate)
            if not isinstance(block.rows, slice):
                centers.write(block.rows, block.weight, states)

    def update_rows(
        self, weight: torch.Tensor, gradient: torch.Tensor, states: dict[str, torch.Tensor], learning_rate: float
    ) -> None:
        """Updates rows in place with operators of PyTorch, which must not wait for the device.

        Args:
            weight: (T, E) centers.
            gradient: (T, E) of the mean loss; may be overwritten.
            states: name -> (T, E) or (T, 1).
            learning_rate: rate of this step.
        """
        raise NotImplementedError

    def _blocks(self, tile: TileGradient) -> list[TileGradient]:
        """Divides a tile into blocks that fit into the cache of a CPU core; on a GPU returns the whole tile."""
        if tile.weight.device.type != "cpu":
            return [tile]
        size = max(1, BLOCK_NUMBERS // tile.weight.shape[1])
        arrays = (array.split(size) for array in (tile.weight, tile.inverse_norm, tile.raw))
        parts = zip(_split(tile.rows, size), *arrays)
        return [TileGradient(rows, weight, norm, raw, tile.scale) for rows, weight, norm, raw in parts]


@dataclass
class RowUpdate:
    """Updates the centers of one step, tile by tile.

    Attributes:
        optimizer: the centers' optimizer.
        centers: the arrays that contain the rows of the tiles.
        learning_rate: rate of this step.
    """

    optimizer: RowOptimizer
    centers: Centers
    learning_rate: float

    def add(self, tile: TileGradient) -> None:
        """See GradientSink; updates the centers of the tile, see RowOptimizer.update."""
        self.optimizer.update(self.centers, tile, self.learning_rate)


def _split(rows: RowIndex, size: int) -> Sequence[RowIndex]:
    if isinstance(rows, slice):
        return [slice(start, min(start + size, rows.stop)) for start in range(rows.start, rows.stop, size)]
    return rows.split(size)
