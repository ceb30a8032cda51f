"""What a step does with the gradient of its centers: collect it, or update the centers (optimizers/optimizer.py).

Shapes: L centers of this rank, S centers of the step, E embedding.
"""

from collections.abc import Iterator
from typing import Protocol

import torch

from .rows import StepCenters, TileGradient, computed_type, gather_rows, inverse_norms, to_device

UPDATE_ROWS = 4096  # rows of a tile in an update outside of the backward pass


class GradientSink(Protocol):
    """Takes the gradients of the tiles of a step in order."""

    def add(self, tile: TileGradient) -> None:
        """Takes the gradient of a tile, and may update its centers."""


class DenseGradient:
    """Collects the gradient of all centers of this rank; it is zero for centers that are not in the step.

    Attributes:
        gradient: (L, E).
    """

    def __init__(self, weight: torch.Tensor):
        self.gradient = torch.zeros_like(weight)

    def add(self, tile: TileGradient) -> None:
        """See GradientSink."""
        self.gradient[tile.rows] = tile.values()


class RowGradient:
    """Collects the gradient of the sampled centers, or its sum over steps with the same centers."""

    def __init__(self, sampled: StepCenters):
        self._sampled = sampled
        weight = sampled.weight
        self._values = weight.new_empty(len(sampled), weight.shape[1], dtype=computed_type(weight))
        self._filled, self._earlier = 0, False

    def add(self, tile: TileGradient) -> None:
        """See GradientSink."""
        values = tile.values()
        part = self._values[self._filled : self._filled + len(values)]
        part.add_(values) if self._earlier else part.copy_(values)
        self._filled += len(values)
        if self._filled == len(self._values):  # the next tile begins another step
            self._filled, self._earlier = 0, True

    def in_order(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the sorted local rows (S,) int64 of the centers and their gradient (S, E)."""
        index, values, sampled = self._sampled.rows, self._values, self._sampled
        if sampled.local_rows is not None:
            index = torch.from_numpy(sampled.local_rows)
        elif index is None:
            index = torch.arange(len(values), device=values.device)
        if sampled.order is None:
            return index, values
        return index[sampled.order], values[to_device(sampled.order, values.device)]


def tiles_of_gradient(sampled: StepCenters, gradient: torch.Tensor) -> Iterator[TileGradient]:
    """Yields the tiles of an update outside of the backward pass; overwrites ``gradient`` (S, E)."""
    weight = sampled.weight
    order = sampled.rows if sampled.order is None else to_device(sampled.order, weight.device)
    for start in range(0, len(gradient), UPDATE_ROWS):
        part = slice(start, min(start + UPDATE_ROWS, len(gradient)))
        rows = part if order is None else order[part]
        centers = gather_rows(weight, rows)
        # The component along the center has been removed, so removing it again changes nothing.
        yield TileGradient(rows, centers, inverse_norms(centers), gradient[part], scale=1.0)
