"""What an optimizer of the centers is: how the rows of a step and their states change.

Shapes: N rows, T rows of a tile, E embedding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..rows import Centers, RowIndex, TileGradient, gather_rows, scatter_rows

BLOCK_NUMBERS = 2**18  # of each array: with their temporaries they stay in the cache


class RowOptimizer:
    """Updates the centers of a step tile by tile, in place; all other rows stay as they are.

    A subclass defines `update_rows`.

    Attributes:
        states: name -> whether the state is a row of E numbers; otherwise it is one number. All are float32, and 0 at
            the start. The names are those of attributes of the layer, and of files.
    """

    states: Mapping[str, bool] = {}

    def update(self, centers: Centers, gradient: TileGradient, learning_rate: float) -> None:
        """Updates one tile.

        Args:
            centers: from which its rows are taken.
            gradient: of the tile; its arrays are overwritten.
            learning_rate: of this step.
        """
        for block in self._blocks(gradient):
            values = block.values()  # its temporary is gone before states are copied
            # A slice gives views; rows by number are copies, which have to be written back.
            states = {name: gather_rows(state, block.rows) for name, state in centers.states.items()}
            self.update_rows(block.weight, values, states, learning_rate)
            if not isinstance(block.rows, slice):
                scatter_rows(centers.weight, block.rows, block.weight)
                for name, state in states.items():
                    scatter_rows(centers.states[name], block.rows, state)

    def update_rows(
        self, weight: torch.Tensor, gradient: torch.Tensor, states: dict[str, torch.Tensor], learning_rate: float
    ) -> None:
        """Updates some rows in place, by operators of PyTorch, which must not wait for the device.

        Args:
            weight: (T, E) centers.
            gradient: (T, E) of the mean loss; may be overwritten.
            states: name -> (T, E) or (T, 1).
            learning_rate: of this step.
        """
        raise NotImplementedError

    def _blocks(self, tile: TileGradient) -> list[TileGradient]:
        """Parts of a tile: on a CPU so small that they stay in the cache of a core, on a GPU the whole tile."""
        if tile.weight.device.type != "cpu":
            return [tile]
        size = max(1, BLOCK_NUMBERS // tile.weight.shape[1])
        arrays = (array.split(size) for array in (tile.weight, tile.inverse_norm, tile.raw))
        parts = zip(_split(tile.rows, size), *arrays)
        return [TileGradient(rows, weight, norm, raw, tile.scale) for rows, weight, norm, raw in parts]


@dataclass
class RowUpdate:
    """An update of one step, which is called with the gradients of its tiles.

    Attributes:
        optimizer: what updates.
        centers: from which the rows of a tile are taken.
        learning_rate: of this step.
    """

    optimizer: RowOptimizer
    centers: Centers
    learning_rate: float

    def __call__(self, gradient: TileGradient) -> None:
        """Updates a tile, see RowOptimizer.update."""
        self.optimizer.update(self.centers, gradient, self.learning_rate)


def _split(rows: RowIndex, size: int) -> Sequence[RowIndex]:
    if isinstance(rows, slice):
        return [slice(start, min(start + size, rows.stop)) for start in range(rows.start, rows.stop, size)]
    return rows.split(size)
