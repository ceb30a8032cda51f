"""Both passes with PyTorch's operators, tile by tile: on any device, for any margin and type.

Shapes: G global batch, T centers of a tile.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ..device_defaults import LogitsCache, suitable_tile_classes
from .margins import Margin
from .passes import Result, Step
from .products import Float32Products, HalfProducts
from .rows import RowIndex, TileGradient, gather_rows, inverse_norms
from .tiles import Tile, TileTargets, cached_tiles, targets_by_tile, tiles_of


@dataclass
class Kept:
    """The tiles of a step."""

    size: int  # T; the last tile may be smaller
    rows: list[RowIndex]  # index of each tile's centers
    targets: list[TileTargets]  # of each tile
    # the first tiles, with exponentials of their logits; the backward pass recomputes the logits of the others
    cached: deque[Tile] = field(default_factory=deque)
    # (tiles, G) float64, the row maxima that were subtracted from the cached logits
    maxima: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    # (G, E), sum of the gradients by the unit rows of the features so far
    d_unit: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    first: TileGradient | None = None  # gradient of the first tile, if computed but not yet passed to ``receive``


class TorchPasses:
    """See Passes.

    Args:
        margin: changes the logits.
        products: compute the matrix products of a tile.
        tile_classes: T; 0 selects a size that suits the device.
        logits_cache_bytes: upper limit of the cache between the passes of a step; None chooses, see LogitsCache.
    """

    def __init__(
        self,
        margin: Margin,
        products: Float32Products | HalfProducts,
        tile_classes: int,
        logits_cache_bytes: int | None,
    ):
        self.margin, self.products = margin, products
        self.tile_classes, self.logits_cache = tile_classes, LogitsCache(logits_cache_bytes)

    def statistics(self, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
        """See Passes.statistics."""
        kept = step.kept = self._divide(step)
        limit = self.logits_cache.limit(step.held.device)
        caching = cached_tiles(step.sampled, kept.size, len(step.held), self.margin.slopes_negatives, limit)
        maxima, sums = [], []
        for number in range(len(kept.rows)):
            tile = self._logits(step, number)
            maxima.append(tile.logits.amax(dim=1))
            sums.append(tile.logits.sub_(maxima[-1][:, None]).exp_().sum(dim=1))
            if number < caching:
                kept.cached.append(tile)
        kept.maxima = torch.stack(maxima).double()
        return kept.maxima, torch.stack(sums).double()

    def begin_gradients(self, step: Step) -> None:
        """See Passes.begin_gradients."""
        if step.kept:
            step.kept.d_unit = torch.zeros_like(step.features.unit)
            step.kept.first = self._gradient(step, 0)

    def gradients(
        self, step: Step, receive: Callable[[TileGradient], None], complete: Callable[[torch.Tensor], Result]
    ) -> Result:
        """See Passes.gradients."""
        self.logits_cache.stepped = True
        kept: Kept | None = step.kept
        if kept is None:
            return complete(torch.zeros_like(step.features.unit))
        if kept.first is None:
            self.begin_gradients(step)
        last, kept.first = kept.first, None
        for number in range(1, len(kept.rows)):
            assert last is not None
            receive(last)
            del last  # frees its memory before the next one is allocated
            last = self._gradient(step, number)
        result = complete(kept.d_unit)
        assert last is not None
        receive(last)
        return result

    def _gradient(self, step: Step, number: int) -> TileGradient:
        """Returns the gradient by the centers of a tile; adds the gradient by the features to ``d_unit``."""
        tile = self._probabilities(step, number)
        gradient = self.products.gradients(tile, step.features, step.d_targets, step.kept.d_unit)
        return TileGradient(tile.rows, tile.weight, tile.inverse_norm, gradient, 1 / len(step.held))

    def _divide(self, step: Step) -> Kept:
        unit, number = step.features.unit, len(step.sampled)
        size = self.tile_classes or suitable_tile_classes(unit.device, len(unit), unit.shape[1])
        return Kept(size, tiles_of(step.sampled, size), targets_by_tile(step.columns, number, size, step.log_weights))

    def _logits(self, step: Step, number: int) -> Tile:
        """Returns a tile with its logits."""
        rows, targets = step.kept.rows[number], step.kept.targets[number]
        weight = gather_rows(step.sampled.centers.weight, rows)
        inverse_norm = inverse_norms(weight)
        logits = self.products.logits(step.features, weight, inverse_norm)
        slope = self.margin.negatives(logits, step.targets)
        if targets.log_weights is not None:
            logits.add_(targets.log_weights)  # after the margin, which expects s times cosines
        targets.scatter(logits, step.target_logits.to(logits.dtype))
        return Tile(rows, targets, weight, inverse_norm, logits, slope)

    def _probabilities(self, step: Step, number: int) -> Tile:
        """Returns a tile whose logits are probabilities over all ranks, times the slope of the margin."""
        if step.kept.cached:
            tile = step.kept.cached.popleft()  # so that its memory is freed after use
            tile.logits.mul_((step.kept.maxima[number] - step.log_sum_exp).exp().to(tile.logits.dtype)[:, None])
        else:
            tile = self._logits(step, number)
            tile.logits.sub_(step.log_sum_exp.to(tile.logits.dtype)[:, None]).exp_()
        if tile.slope is not None:
            tile.logits.mul_(tile.slope)
        return tile
