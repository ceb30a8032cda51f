"""The gradient of the centers of a step, for an optimizer that is called later.

Shapes: L classes of this rank, S centers of the step, E embedding.
"""

from __future__ import annotations

import torch

from .rows import TileGradient
from .stores import StepCenters


class DenseGradient:
    """Collects the gradient of all centers of this rank; zero for those that are not in the step.

    Args:
        weight: (L, E) centers.

    Attributes:
        gradient: (L, E).
    """

    def __init__(self, weight: torch.Tensor):
        self.gradient = torch.zeros_like(weight)

    def __call__(self, tile: TileGradient) -> None:
        """Takes the gradient of a tile."""
        self.gradient[tile.rows] = tile.values()


class SparseGradient:
    """Collects the gradient of the centers of a step alone.

    Args:
        weight: (L, E) centers.
        sampled: those of the step.
    """

    def __init__(self, weight: torch.Tensor, sampled: StepCenters):
        self._shape = weight.shape
        rows = sampled.rows
        self._index = torch.arange(len(weight), device=weight.device) if rows is None else rows
        self._values = weight.new_empty(len(self._index), weight.shape[1])
        self._filled = 0

    def __call__(self, tile: TileGradient) -> None:
        """Takes the gradient of a tile."""
        values = tile.values()
        self._values[self._filled : self._filled + len(values)] = values
        self._filled += len(values)

    @property
    def gradient(self) -> torch.Tensor:
        """(L, E), sparse by rows."""
        return torch.sparse_coo_tensor(self._index[None], self._values, self._shape, is_coalesced=True)
