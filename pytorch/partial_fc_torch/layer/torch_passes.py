"""Both passes with PyTorch's operators, tile by tile: on any device, for any margin, objective and type.

Shapes: G global batch, P labels of an item, T classes of a tile, K sub-centers, E embedding.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import torch

from partial_fc.layer.tiling import LOGITS_CACHE_MB
from partial_fc.utils.text import amount

from ..device_defaults import gpu_facts, suitable_tile_classes
from .gradients import GradientSink
from .products import Operands
from .rows import RowIndex, TileGradient, gather_rows, inverse_norms, is_narrow
from .step import Loss, Step


@dataclass
class Tile:
    """Some of the classes of a step."""

    rows: RowIndex  # index of the centers
    weight: torch.Tensor  # (T*K, E) centers; empty in the cache if they are stored in 16 bits
    inverse_norm: torch.Tensor  # (T*K,) 1 / |W|
    log_weights: torch.Tensor | None  # (T,), see Drawn
    # (G, T), -inf for labels of a row. `Objective.term` replaces them by their part of the sums, and in the backward
    # pass by the gradient with respect to them.
    logits: torch.Tensor
    # (G, T), derivatives of the logits with respect to s times the cosines; None for 1
    slope: torch.Tensor | None = None
    winner: torch.Tensor | None = None  # (G, T) uint8, the sub-center with the largest cosine; None with one sub-center
    operands: Operands | None = None  # of the gradient products; they have overwritten the logits

    def multiply_by_slope(self, slope: torch.Tensor | None) -> None:
        """Applies the chain rule for a further change of the logits, which has the derivatives ``slope``."""
        if slope is not None:
            self.slope = slope if self.slope is None else self.slope.mul_(slope)


@dataclass
class Kept:
    """Data that both passes of a step share."""

    size: int  # T; the last tile may be smaller
    # (G*P,) int64, the labels of all rows in the order of their centers, with labels of other ranks first; stable, so
    # that the sums are reproducible on a CPU
    order: torch.Tensor
    positions: torch.Tensor  # (G*P,) int64, of their centers in their tiles, in this order
    tiles: torch.Tensor  # (G, P) int64, the tile of each label, -1 for labels of other ranks
    columns: torch.Tensor  # (G, P) int64, its column there; arbitrary for labels of other ranks
    sums: torch.Tensor = field(default_factory=lambda: torch.empty(0))  # (tiles, 2, G) float64, see Objective.term
    caching: int = 0  # number of tiles that are cached, the first ones
    cosines: list[Tile] | None = None  # these tiles, from `hardest` to `statistics`: their logits without any change
    cached: list[Tile | None] = field(default_factory=list)  # these tiles, whose `logits` need not be recomputed
    # The labels' part of the gradients by the centers, in the order of ``positions``: rows of the batch (G*P,) int64,
    # and their factors (G*P,)
    rows: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    factors: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    # (G, E), sum of the gradients by the unit rows of the features so far
    d_unit: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    copies: torch.Tensor | None = None  # (S*K, E), where the centers of cached tiles are copied on a CPU
    pending: Tile | None = None  # the tile whose feature gradient was added last


class LogitsCache:
    """The number of bytes of logits that a step may keep between its passes.

    Args:
        nbytes: the limit; None selects LOGITS_CACHE_MB, and on a GPU adds what the first step leaves free.

    Attributes:
        stepped: whether a backward pass has been done.
    """

    def __init__(self, nbytes: int | None):
        self._automatic = nbytes is None
        self._limit = LOGITS_CACHE_MB << 20 if nbytes is None else nbytes
        self.stepped = False

    def limit(self, device: torch.device) -> int:
        """Returns the limit of the next step on this device."""
        gpu = gpu_facts(device) if self._automatic and self.stepped else None
        if gpu is not None:
            # By now a whole step, including the backbone's, has allocated its memory, which PyTorch's allocator keeps:
            # ``free`` is what the peak of a step leaves. A tenth of the GPU's memory stays free, for blocks of other
            # sizes, verification and libraries.
            free, _ = torch.cuda.mem_get_info(device)
            self._automatic, self._limit = False, self._limit + max(0, free - gpu.memory // 10)
            logging.info("the layer caches up to %s of logits, as %s are free", amount(self._limit), amount(free))
        return self._limit


class TorchPasses:
    """Both passes over the centers of a step, which are divided into tiles.

    Args:
        loss: changes and sums the logits, and computes the matrix products of a tile.
        tile_classes: T; 0 selects a size that suits the device.
        logits_cache_bytes: upper limit of the cache between the passes of a step; None chooses, see LogitsCache.
    """

    fused = None  # no kernels, see TritonPasses

    def __init__(self, loss: Loss, tile_classes: int, logits_cache_bytes: int | None):
        self.loss, self.tile_classes, self.logits_cache = loss, tile_classes, LogitsCache(logits_cache_bytes)
        self._copies: torch.Tensor | None = None  # of the last step, see Kept

    def hardest(self, step: Step, count: int) -> torch.Tensor:
        """Returns the largest logits of each row's negatives on this rank (count, G), before any change of them.

        They are -inf where there are fewer negatives. Called before `statistics`, if at all.
        """
        unit = step.features.unit
        largest = unit.new_full((len(unit), count), -torch.inf)
        if len(step.sampled):
            kept = self._begin(step)
            kept.cosines = []
            for number in range(self.num_tiles(step)):
                tile = self._cosines(step, number)
                self._exclude_labels(step, number, tile.logits)
                largest = torch.cat([largest, tile.logits], dim=1).topk(count, dim=1).values
                if number < kept.caching:
                    kept.cosines.append(tile)
        return largest.t()

    def statistics(self, step: Step) -> torch.Tensor:
        """Returns the sums of the negatives (2, G) float64, see Objective.term. There is at least one center."""
        term, sums = self.loss.objective.term, []
        kept = step.kept if step.kept and step.kept.cosines is not None else self._begin(step)
        cosines, kept.cosines = kept.cosines or [], None
        for number in range(self.num_tiles(step)):
            tile = self._logits(step, number, cosines[number] if number < len(cosines) else None)
            sums.append(term.tile(tile.logits, tile.log_weights))
            if number < kept.caching:
                kept.cached.append(tile)
        kept.sums = torch.stack(sums).double()
        return term.combine(kept.sums)

    def _begin(self, step: Step) -> Kept:
        """Chooses the tiles of a step, and finds its labels in them."""
        unit, labels = step.features.unit, step.labels
        classes = self.tile_classes or suitable_tile_classes(unit.device, len(unit), unit.shape[1])
        size = max(1, classes // self.loss.sub_centers)
        width = size * self.loss.sub_centers
        positions, order = torch.where(labels.held, labels.positions, -1).flatten().sort(stable=True)
        kept = step.kept = Kept(size, order, positions % width, labels.columns // size, labels.columns % size)
        starts = torch.arange(0, len(step.sampled) + width, width, device=unit.device)
        step.borders = torch.searchsorted(positions, starts)  # where the labels of each tile begin
        kept.caching = self._cached_tiles(step)
        if kept.caching and unit.is_cpu and step.sampled.rows is not None and not is_narrow(step.sampled.weight):
            kept.copies = self._take_copies(step)
        return kept

    def num_tiles(self, step: Step) -> int:
        """Returns the number of tiles, after `statistics`."""
        return -(-len(step.sampled) // (step.kept.size * self.loss.sub_centers))

    def start_gradients(self, step: Step) -> None:
        """Prepares a backward pass, in which the methods below are called for each tile in order.

        A second backward pass of a step recomputes the logits.
        """
        self.logits_cache.stepped = True
        kept, labels = step.kept, step.labels
        kept.d_unit = step.label_gradient()
        kept.rows = kept.order // labels.held.shape[1]
        kept.factors = (step.d_labels * labels.inverse_norms * self.loss.margin.scale).flatten()[kept.order]

    def add_feature_gradient(self, step: Step, number: int) -> None:
        """Adds a tile's gradient by the features; changes no center, so it may come before the loss is checked."""
        kept, tile, products = step.kept, self._gradients(step, number), self.loss.products
        d_logits = tile.logits
        if tile.winner is not None:  # only the nearest sub-center gets a gradient
            d_logits = d_logits.new_zeros(*d_logits.shape, self.loss.sub_centers)
            d_logits = d_logits.scatter_(2, tile.winner.long()[..., None], tile.logits[..., None]).flatten(1)
        tile.operands = products.prepare(d_logits, tile.weight, tile.inverse_norm)
        tile.logits, tile.slope = tile.operands.d_logits, None  # frees copies
        products.add_feature_gradient(tile.operands, kept.d_unit)
        kept.pending = tile

    def feature_gradient(self, step: Step) -> torch.Tensor:
        """Returns the gradient (G, E) by the unit rows of the features, without s, after the last tile was added.

        The component along each row, which is not part of the gradient, is not yet removed.
        """
        gradient: torch.Tensor = step.kept.d_unit
        return gradient

    def add_center_gradient(self, step: Step, number: int, sink: GradientSink) -> None:
        """Gives ``sink`` the gradient of the summed loss by the centers of the tile whose feature gradient was added.

        Needs ``step.borders`` on the host.
        """
        kept, tile, unit = step.kept, step.kept.pending, step.features.unit
        raw = self.loss.products.center_gradient(tile.operands, step.features, tile.inverse_norm)
        gradient = TileGradient(tile.rows, tile.weight, tile.inverse_norm, raw, 1 / len(unit))
        kept.pending = tile = None  # frees the memory of logits and operands before the update
        part = slice(step.borders[number], step.borders[number + 1])
        features = unit.index_select(0, kept.rows[part])  # float32 rows in all types
        raw.index_add_(0, kept.positions[part], features.mul_(kept.factors[part, None]))
        sink.add(gradient)
        if number == self.num_tiles(step) - 1:
            self._copies, kept.copies = kept.copies, None

    def _take_copies(self, step: Step) -> torch.Tensor:
        """Returns memory for Kept.copies, of the last step if possible.

        A C library returns large blocks to the system, and new ones cost a page fault for every 4 KB: a tenth of a
        step. The memory belongs to this step until its backward pass ends, because others may begin before that.
        """
        held, self._copies = self._copies, None
        centers = step.sampled.weight
        shape = len(step.sampled), centers.shape[1]
        # PyTorch writes to an inference tensor in inference mode only.
        if held is None or held.shape != shape or held.dtype != centers.dtype or held.is_inference():
            return centers.new_empty(shape)
        return held

    def _cosines(self, step: Step, number: int) -> Tile:
        """Returns a tile with s times the cosines as logits, also for labels."""
        (_, _, products, count), sampled, size = self.loss, step.sampled, step.kept.size
        start, stop = number * size, min((number + 1) * size, len(sampled) // count)
        part = slice(start * count, stop * count)
        rows = part if sampled.rows is None else sampled.rows[part]
        weight = gather_rows(sampled.weight, rows, None if step.kept.copies is None else step.kept.copies[part])
        inverse_norm = inverse_norms(weight)
        logits = products.logits(step.features, weight, inverse_norm)
        log_weights = None if step.log_weights is None else step.log_weights[start:stop]
        tile = Tile(rows, weight, inverse_norm, log_weights, logits)
        if count > 1:
            tile.logits, winner = logits.view(len(logits), -1, count).max(dim=2)
            tile.winner = winner.to(torch.uint8)
        if number < step.kept.caching and is_narrow(sampled.weight):
            # Read again in the backward pass: float32 copies would take more memory than the logits.
            tile.weight = weight.new_empty(0)
        return tile

    def _logits(self, step: Step, number: int, tile: Tile | None = None) -> Tile:
        """Returns a tile, a result of `_cosines`, with the logits of the negatives, without their weights."""
        tile = tile or self._cosines(step, number)
        tile.multiply_by_slope(self.loss.margin.negatives(tile.logits, step.targets))
        tile.multiply_by_slope(self.loss.objective.change_negatives(tile.logits))
        self._exclude_labels(step, number, tile.logits)
        return tile

    def _exclude_labels(self, step: Step, number: int, logits: torch.Tensor) -> None:
        """Sets the labels' logits of a tile (G, T) to -inf."""
        kept, last = step.kept, logits.shape[1] - 1
        columns = kept.columns if last + 1 == kept.size else kept.columns.clamp(max=last)
        # Adding needs no order where several labels share a column because they are in other tiles.
        excluded = torch.where(kept.tiles == number, -torch.inf, 0.0).to(logits.dtype)
        logits.scatter_add_(1, columns, excluded)

    def _gradients(self, step: Step, number: int) -> Tile:
        """Returns a tile whose logits are the gradients by s times the cosines."""
        kept, term = step.kept, self.loss.objective.term
        tile = kept.cached[number] if number < len(kept.cached) else None
        if tile is not None:
            kept.cached[number] = None  # so that its memory is freed after use
            tile.logits.mul_(term.factors(kept.sums[number], step.row_term).to(tile.logits.dtype)[:, None])
        else:
            tile = self._logits(step, number)
            term.gradients(tile.logits, tile.log_weights, step.row_term)
        if not len(tile.weight):
            tile.weight = gather_rows(step.sampled.weight, tile.rows)
        if tile.slope is not None:
            tile.logits.mul_(tile.slope)
        return tile

    def _cached_tiles(self, step: Step) -> int:
        """Returns how many tiles the cache has room for: their logits, slopes and copied centers.

        A CPU caches all tiles or none, as partial-fc plan assumes.
        """
        (margin, objective, _, count), weight, batch = self.loss, step.sampled.weight, len(step.labels.held)
        arrays = 1 + (margin.slopes_negatives or objective.slopes_negatives)
        copied = weight.shape[1] * count if step.sampled.rows is not None and not is_narrow(weight) else 0
        class_bytes = step.features.unit.element_size() * (batch * arrays + copied) + batch * (count > 1)
        fitting = self.logits_cache.limit(weight.device) // class_bytes
        if fitting * count >= len(step.sampled):
            return self.num_tiles(step)
        return 0 if weight.is_cpu else fitting // step.kept.size
