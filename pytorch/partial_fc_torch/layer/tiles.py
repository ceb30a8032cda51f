"""The division of the centers of a step into tiles, and the targets of the batch among them.

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

    inside: torch.Tensor  # (G,) whether the target of a row is in the tile
    columns: torch.Tensor  # (G,) int64, its column of the tile; any column for the other rows
    # (T,), which the logits of the tile get, see partial_fc/layer/sampling.py; None for 0
    log_weights: torch.Tensor | None = None

    def scatter(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        """Writes values (G,) to the targets' elements of ``rows`` (G, T)."""
        columns = self.columns[:, None]
        rows.scatter_(1, columns, torch.where(self.inside[:, None], values[:, None], rows.gather(1, columns)))


@dataclass
class Tile:
    """Some of the centers of a step."""

    rows: RowIndex  # of these centers
    targets: TileTargets  # of the batch among them
    weight: torch.Tensor  # (T, E) centers
    inverse_norm: torch.Tensor  # (T,) 1 / |W|
    logits: torch.Tensor  # (G, T); the passes overwrite them with exponentials, probabilities and gradients
    # (G, T), derivatives of the logits of negatives by s times their cosines; None for 1
    slope: torch.Tensor | None = None


def tiles_of(sampled: StepCenters, size: int) -> list[RowIndex]:
    """The rows of the centers of each tile: slices if the step has all rows."""
    if not len(sampled):
        return []
    if sampled.rows is not None:
        return list(sampled.rows.split(size))
    return [slice(start, min(start + size, len(sampled))) for start in range(0, len(sampled), size)]


def targets_by_tile(
    columns: torch.Tensor, sampled: int, size: int, log_weights: torch.Tensor | None = None
) -> list[TileTargets]:
    """The targets of the batch in each tile.

    Args:
        columns: (G,) int64, column of each row's target among the centers of the step, -1 if it is not among them.
        sampled: S.
        size: T.
        log_weights: (S,), see `negative_weights`.
    """
    starts = torch.arange(0, sampled, size, device=columns.device)
    of_tile = columns - starts[:, None]
    # A tile that is smaller than the others is the last one, and no column is beyond it.
    inside = (of_tile >= 0) & (of_tile < size)
    weights = [None] * len(starts) if log_weights is None else log_weights.split(size)
    return [TileTargets(*parts) for parts in zip(inside, of_tile.clamp(0, size - 1), weights)]


def negative_weights(columns: torch.Tensor, sampled: int, num_local: int) -> torch.Tensor | None:
    """What the logits (S,) of sampled negatives get, see log_weights; None if all negatives are in the step.

    Args:
        columns, sampled: as of `targets_by_tile`.
        num_local: L; 0 for no weights.
    """
    if num_local <= sampled:
        return None
    drawn = torch.ones(sampled + 1, dtype=torch.bool, device=columns.device)
    drawn[columns] = False  # the last place is that of -1
    return log_weights(drawn[:-1], num_local, torch)


def cached_tiles(sampled: StepCenters, size: int, batch: int, slopes: bool, limit: int) -> int:
    """The number of tiles whose logits, with slopes and the copies of their centers, take at most ``limit`` bytes.

    They are the first ones. On a CPU they are all or none, which partial-fc plan counts on.
    """
    weight = sampled.centers.weight
    numbers = batch * (1 + slopes) + (weight.shape[1] if sampled.rows is not None else 0)
    fitting = limit // (weight.element_size() * numbers)
    if fitting >= len(sampled):
        return -(-len(sampled) // size)
    return 0 if weight.is_cpu else fitting // size
