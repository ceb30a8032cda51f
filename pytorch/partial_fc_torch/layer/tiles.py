"""The division of the centers of a step into tiles, and the targets of the batch in each tile.

Shapes: G global batch, S centers of the step, T centers of a tile, E embedding.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from partial_fc.layer.sampling import log_weights

from .rows import RowIndex
from .stores import StepCenters


class TileTargets(NamedTuple):
    """The targets of the batch in a tile. No shape depends on their number, which only the device knows."""

    inside: torch.Tensor  # (G,) bool, whether the target of a row is in the tile
    columns: torch.Tensor  # (G,) int64, its column in the tile; arbitrary for the other rows
    # (T,), added to the logits of the tile, see partial_fc/layer/sampling.py; None for 0
    log_weights: torch.Tensor | None = None

    def scatter(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        """Writes values (G,) to the targets' elements of ``rows`` (G, T)."""
        columns = self.columns[:, None]
        rows.scatter_(1, columns, torch.where(self.inside[:, None], values[:, None], rows.gather(1, columns)))


@dataclass
class Tile:
    """Some of the centers of a step."""

    rows: RowIndex  # index of these centers
    targets: TileTargets  # of the batch in this tile
    weight: torch.Tensor  # (T, E) centers
    inverse_norm: torch.Tensor  # (T,) 1 / |W|
    logits: torch.Tensor  # (G, T); the passes overwrite them with exponentials, probabilities and gradients
    # (G, T), derivatives of negatives' logits by s times their cosines; None for 1
    slope: torch.Tensor | None = None


def tiles_of(sampled: StepCenters, size: int) -> list[RowIndex]:
    """Returns the rows of the centers of each tile: slices if the step has all rows."""
    if not len(sampled):
        return []
    if sampled.rows is not None:
        return list(sampled.rows.split(size))
    return [slice(start, min(start + size, len(sampled))) for start in range(0, len(sampled), size)]


def targets_by_tile(
    columns: torch.Tensor, sampled: int, size: int, log_weights: torch.Tensor | None = None
) -> list[TileTargets]:
    """Returns the targets of the batch in each tile.

    Args:
        columns: (G,) int64, column of each row's target among the centers of the step, -1 if not on this rank.
        sampled: S.
        size: T.
        log_weights: (S,), see `negative_weights`.
    """
    starts = torch.arange(0, sampled, size, device=columns.device)
    of_tile = columns - starts[:, None]
    # The last tile may be smaller, but no column is beyond its end.
    inside = (of_tile >= 0) & (of_tile < size)
    weights = [None] * len(starts) if log_weights is None else log_weights.split(size)
    return [TileTargets(*parts) for parts in zip(inside, of_tile.clamp(0, size - 1), weights)]


def negative_weights(columns: torch.Tensor, sampled: int, num_local: int) -> torch.Tensor | None:
    """Returns the weights (S,) to add to the logits of sampled negatives, see log_weights; None if there are none.

    Args:
        columns, sampled: see `targets_by_tile`.
        num_local: L; 0 disables the weights.
    """
    if num_local <= sampled:
        return None
    drawn = torch.ones(sampled + 1, dtype=torch.bool, device=columns.device)
    drawn[columns] = False  # a column of -1 sets the additional last element
    return log_weights(drawn[:-1], num_local, torch)


def cached_tiles(sampled: StepCenters, size: int, batch: int, slopes: bool, limit: int) -> int:
    """Returns how many tiles to cache: their logits, slopes and copied centers take at most ``limit`` bytes.

    A CPU caches all tiles or none, as partial-fc plan assumes.
    """
    weight = sampled.centers.weight
    numbers = batch * (1 + slopes) + (weight.shape[1] if sampled.rows is not None else 0)
    fitting = limit // (weight.element_size() * numbers)
    if fitting >= len(sampled):
        return -(-len(sampled) // size)
    return 0 if weight.is_cpu else fitting // size
