"""Both passes with PyTorch's operators, tile by tile: on any device, for any margin, objective and type.

Shapes: G global batch, P labels of an item, T classes of a tile, K sub-centers, E embedding.
"""

import itertools
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from ..device_defaults import LogitsCache, suitable_tile_classes
from .gradients import GradientSink
from .margins import Margin
from .objectives import Objective
from .passes import Step
from .products import Float32Products, HalfProducts, Operands
from .rows import RowIndex, TileGradient, gather_rows, inverse_norms


@dataclass
class Tile:
    """Some of the classes of a step."""

    start: int  # first column
    stop: int
    rows: RowIndex  # index of the centers
    weight: torch.Tensor  # (T*K, E) centers
    inverse_norm: torch.Tensor  # (T*K,) 1 / |W|
    logits: torch.Tensor  # (G, T); -inf for labels of a row; the passes overwrite them
    # (G, T), derivatives of the logits with respect to s times the cosines; None for 1
    slope: torch.Tensor | None = None
    winner: torch.Tensor | None = None  # (G, T) uint8, the sub-center with the largest cosine; None with one sub-center

    def multiply_by_slope(self, slope: torch.Tensor | None) -> None:
        """Multiplies the derivatives by those of a further change of the logits."""
        if slope is not None:
            self.slope = slope if self.slope is None else self.slope.mul_(slope)


class TileLabels(NamedTuple):
    """Labels of a tile, n of them, and perhaps others with a factor of 0."""

    positions: torch.Tensor  # (n,) int64, of their centers in the tile
    rows: torch.Tensor  # their unit rows (n, E), or the numbers of these rows in the batch (n,) int64
    factors: torch.Tensor  # (n,), of the unit rows in the gradient with respect to the centers


class PendingTile(NamedTuple):
    """A tile between its two gradient products."""

    rows: RowIndex  # index of the centers
    weight: torch.Tensor  # (T*K, E) centers
    inverse_norm: torch.Tensor  # (T*K,)
    operands: Operands


@dataclass
class Kept:
    """Data that both passes of a step share."""

    size: int  # T; the last tile may be smaller
    # (tiles, width, G) float64, the sums of the tiles, see Objective.term
    sums: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    cached: list[Tile | None] = field(default_factory=list)  # the first tiles, whose logits need not be recomputed
    # (tiles, G, P), the columns of the labels in each tile, and -inf where a label is in the tile, otherwise 0
    columns: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    excluded: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    tile_labels: list[TileLabels] = field(default_factory=list)  # of each tile, in the backward pass
    # (G, E), sum of the gradients by the unit rows of the features so far
    d_unit: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    pending: PendingTile | None = None  # the tile whose feature gradient was added last


class TorchPasses:
    """See Passes.

    Args:
        margin, objective: change the logits; the objective also defines how they are summed.
        products: compute the matrix products of a tile.
        tile_classes: T; 0 selects a size that suits the device.
        logits_cache_bytes: upper limit of the cache between the passes of a step; None chooses, see LogitsCache.
    """

    def __init__(
        self,
        margin: Margin,
        objective: Objective,
        products: Float32Products | HalfProducts,
        tile_classes: int,
        logits_cache_bytes: int | None,
    ):
        self.margin, self.objective, self.products = margin, objective, products
        self.tile_classes, self.logits_cache = tile_classes, LogitsCache(logits_cache_bytes)

    def statistics(self, step: Step) -> torch.Tensor:
        """See Passes.statistics."""
        unit, labels = step.features.unit, step.labels
        size = self.tile_classes or suitable_tile_classes(unit.device, len(unit), unit.shape[1])
        kept = step.kept = Kept(max(1, size // step.sub_centers))
        caching = self._cached_tiles(step, kept.size)
        in_tile, inside = labels_by_tile(labels.columns, step.num_classes, kept.size)
        kept.columns, kept.excluded = in_tile, torch.where(inside, -torch.inf, 0.0).to(unit.dtype)
        sums = []
        for number in range(self.num_tiles(step)):
            tile = self._logits(step, number)
            sums.append(self.objective.term.tile(tile.logits, self._log_weights(step, tile)))
            if number < caching:
                kept.cached.append(tile)
        kept.sums = torch.stack(sums).double()
        return self.objective.term.combine(kept.sums)

    def num_tiles(self, step: Step) -> int:
        """See Passes.num_tiles."""
        return -(-step.num_classes // step.kept.size)

    def start_gradients(self, step: Step) -> None:
        """See Passes.start_gradients."""
        self.logits_cache.stepped = True
        step.kept.d_unit = step.label_gradient()
        step.kept.tile_labels = self._tile_labels(step)

    def add_feature_gradient(self, step: Step, number: int) -> None:
        """See Passes.add_feature_gradient."""
        kept = step.kept
        tile = self._probabilities(step, number)
        d_logits = tile.logits
        if tile.winner is not None:  # only the nearest sub-center gets a gradient
            d_logits = d_logits.new_zeros(*d_logits.shape, step.sub_centers)
            d_logits = d_logits.scatter_(2, tile.winner.long()[..., None], tile.logits[..., None]).flatten(1)
        operands = self.products.prepare(d_logits, tile.weight, tile.inverse_norm)
        kept.pending = PendingTile(tile.rows, tile.weight, tile.inverse_norm, operands)
        self.products.add_feature_gradient(operands, kept.d_unit)

    def feature_gradient(self, step: Step) -> torch.Tensor:
        """See Passes.feature_gradient."""
        return step.kept.d_unit

    def add_center_gradient(self, step: Step, number: int, sink: GradientSink) -> None:
        """See Passes.add_center_gradient."""
        kept, (index, weight, inverse_norm, operands) = step.kept, step.kept.pending
        raw = self.products.center_gradient(operands, step.features, inverse_norm)
        kept.pending = operands = None  # frees their memory before the update
        positions, rows, factors = kept.tile_labels[number]
        features = step.features.unit[rows] if rows.ndim == 1 else rows
        raw.index_add_(0, positions, features * factors[:, None])  # from float32 rows in all types
        sink.add(TileGradient(index, weight, inverse_norm, raw, 1 / len(step.labels.held)))

    def _tile_labels(self, step: Step) -> list[TileLabels]:
        """Returns the labels' part of the gradients by the centers of each tile."""
        labels, count, unit = step.labels, step.labels.columns.shape[1], step.features.unit
        size, total = step.kept.size * step.sub_centers, len(step.sampled)
        positions = torch.where(labels.held, labels.positions, -1).flatten()
        factors = (step.d_labels * labels.inverse_norms * self.margin.scale).flatten()
        if unit.is_cpu:
            # In the order of the batch within each center, so that the sums are reproducible.
            positions, order = positions.sort(stable=True)
            borders = torch.searchsorted(positions, torch.arange(0, total + size, size)).tolist()
            parts = [slice(*pair) for pair in itertools.pairwise(borders)]
            firsts = range(0, total, size)
            return [
                TileLabels(positions[p] - first, order[p] // count, factors[order[p]])
                for p, first in zip(parts, firsts)
            ]
        # Only the device knows which labels are in a tile, and waiting for it would leave it idle.
        in_tile, inside = labels_by_tile(positions, total, size)
        rows = unit[:, None].expand(-1, count, -1).reshape(len(factors), -1)
        return [TileLabels(at, rows, each) for at, each in zip(in_tile, torch.where(inside, factors, 0.0))]

    def _logits(self, step: Step, number: int) -> Tile:
        """Returns a tile with the logits of the negatives, without their weights."""
        start, count, sampled = number * step.kept.size, step.sub_centers, step.sampled
        stop = min(start + step.kept.size, step.num_classes)
        part = slice(start * count, stop * count)
        rows = part if sampled.rows is None else sampled.rows[part]
        weight = gather_rows(sampled.centers.weight, rows)
        inverse_norm = inverse_norms(weight)
        logits = self.products.logits(step.features, weight, inverse_norm)
        tile = Tile(start, stop, rows, weight, inverse_norm, logits)
        if count > 1:
            tile.logits, winner = logits.view(len(logits), -1, count).max(dim=2)
            tile.winner = winner.to(torch.uint8)
        tile.multiply_by_slope(self.margin.negatives(tile.logits, step.targets))
        tile.multiply_by_slope(self.objective.change_negatives(tile.logits))
        # Adding needs no order where several labels share a column because they are in other tiles.
        tile.logits.scatter_add_(1, step.kept.columns[number], step.kept.excluded[number])
        return tile

    def _probabilities(self, step: Step, number: int) -> Tile:
        """Returns a tile whose logits are the gradients by s times the cosines."""
        kept, term = step.kept, self.objective.term
        tile = kept.cached[number] if number < len(kept.cached) else None
        if tile is not None:
            kept.cached[number] = None  # so that its memory is freed after use
            tile.logits.mul_(term.factors(kept.sums[number], step.row_term).to(tile.logits.dtype)[:, None])
        else:
            tile = self._logits(step, number)
            term.gradients(tile.logits, self._log_weights(step, tile), step.row_term)
        if tile.slope is not None:
            tile.logits.mul_(tile.slope)
        return tile

    @staticmethod
    def _log_weights(step: Step, tile: Tile) -> torch.Tensor | None:
        return None if step.log_weights is None else step.log_weights[tile.start : tile.stop]

    def _cached_tiles(self, step: Step, size: int) -> int:
        """Returns how many tiles the cache has room for: their logits, slopes and copied centers.

        A CPU caches all tiles or none, as partial-fc plan assumes.
        """
        weight, batch = step.sampled.centers.weight, len(step.labels.held)
        arrays = 1 + (self.margin.slopes_negatives or self.objective.slopes_negatives)
        copied = weight.shape[1] * step.sub_centers if step.sampled.rows is not None else 0
        class_bytes = weight.element_size() * (batch * arrays + copied) + batch * (step.sub_centers > 1)
        fitting = self.logits_cache.limit(weight.device) // class_bytes
        if fitting >= step.num_classes:
            return -(-step.num_classes // size)
        return 0 if weight.is_cpu else fitting // size


def labels_by_tile(columns: torch.Tensor, total: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the columns of labels in each tile, and whether they are in it.

    Args:
        columns: int64 in any shape, below ``total``; -1 for none.
        total, size: number of columns of the step and of a tile.

    Returns:
        (tiles, *shape of ``columns``): int64, arbitrary columns of the tile for labels in other tiles; and bool.
    """
    starts = torch.arange(0, total, size, device=columns.device)
    in_tile = columns - starts.view(-1, *(1 for _ in columns.shape))
    # The last tile may be smaller, but no column is beyond its end.
    return in_tile.clamp(0, size - 1), (in_tile >= 0) & (in_tile < size)
