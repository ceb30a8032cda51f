"""The classification layer of one rank, tile by tile: its part of one softmax over the centers of all ranks.

The forward pass computes the logits of each tile, and of every row their maximum and their sum of exponentials. The
ranks exchange these statistics. The backward pass turns the logits of each tile into probabilities of the undivided
layer and computes both gradients; an object that is passed to it receives those of the centers. The logits are cached
between the passes if they fit into ``logits_cache_bytes``. Otherwise the backward pass computes them again, and the
memory of a step does not grow with the number of classes.

With the unit rows x = X / |X| of the features and w = W / |W| of the centers, a logit is s x.w; the margin changes only
the G target logits. With the probabilities p, D = p - onehot and g = s D^T x, the gradient through the normalization
of a center is dW = (g - (g.w) w) / |W|. The gradient of a feature has the same form.

No operation here waits for the device, and no shape depends on values there.

Shapes: G global batch, N rows that centers are taken from, S centers of the step, T centers of a tile, E embedding.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import torch

from partial_fc.layer.softmax import combine_tiles
from partial_fc.layer.tiling import tile_classes

from .center_gradients import DenseGradient, SGDUpdate
from .margin_losses import CombinedMarginLoss
from .products import TileTargets, products_of
from .rows import dot_rows, inverse_norms, remove_component


@dataclass
class _TileLogits:
    """The logits of one tile and what they depend on.

    Attributes:
        weight: (T, E) centers.
        inverse_norm: (T,) 1 / |W|.
        logits: (G, T). The passes overwrite them with exponentials, probabilities and gradients.
    """

    weight: torch.Tensor
    inverse_norm: torch.Tensor
    logits: torch.Tensor


@dataclass
class StepState:
    """The state of a step between its forward and its backward pass.

    Attributes:
        tiles: for each tile the rows of its centers, a slice or (T,) int64.
        targets: for each tile those of the batch.
        unit: (G, E) unit rows x of the features.
        inverse_norm: (G,) 1 / |X|.
        features: (G, E) the unit rows as operand of the products.
        target_logits: (G,) float64, -inf where another rank holds the target.
        target_slope: (G,) float64, derivative of target logit / s by the cosine.
        cached: the tiles' exponentiated logits; empty if the backward pass computes the logits again.
        maxima: (tiles, G) float64, the row maxima that were subtracted from the cached logits.
    """

    tiles: list[slice] | list[torch.Tensor]
    targets: list[TileTargets]
    unit: torch.Tensor
    inverse_norm: torch.Tensor
    features: torch.Tensor
    target_logits: torch.Tensor
    target_slope: torch.Tensor
    cached: deque[_TileLogits] = field(default_factory=deque)
    maxima: torch.Tensor = field(default_factory=lambda: torch.empty(0))


class TiledMarginSoftmax:
    """A margin softmax over the centers of this rank.

    Args:
        margin_loss: its margins and scale.
        size: T, classes of a tile; 0 selects a size that suits the device.
        logits_cache_bytes: upper limit of what a step caches between its two passes.
        dtype: of the operands of the products, see products.py.
    """

    def __init__(
        self, margin_loss: CombinedMarginLoss, size: int, logits_cache_bytes: int, dtype: torch.dtype = torch.float32
    ):
        self.margin_loss = margin_loss
        self.products = products_of(dtype, margin_loss.scale)
        self.size = size
        self.logits_cache_bytes = logits_cache_bytes

    def forward(
        self, features: torch.Tensor, weight: torch.Tensor, columns: torch.Tensor, rows: torch.Tensor | None
    ) -> tuple[StepState, torch.Tensor]:
        """Computes the softmax statistics of this rank's centers.

        Args:
            features: (G, E) floating point.
            weight: (N, E) centers, of the same type and device; N at least 1.
            columns: (G,) int64, column of each row's target among the centers of the step, -1 if it is not among them.
            rows: (S,) int64, the rows of these centers, S at least 1; None for all rows.

        Returns:
            (state for `backward`, (3, G) float64: maximum logit of each row, sum of exp(logit - maximum), target
            logit or -inf).
        """
        state = self._prepare(features, weight, columns, rows)
        caching = self._fits_cache(len(columns), weight, rows)
        maxima, sums = zip(*(self._forward_tile(state, weight, number, caching) for number in range(len(state.tiles))))
        state.maxima, totals = torch.stack(maxima).double(), torch.stack(sums).double()
        return state, torch.stack([*combine_tiles(state.maxima, totals, torch), state.target_logits])

    def backward(
        self,
        state: StepState,
        weight: torch.Tensor,
        log_sum_exp: torch.Tensor,
        center_gradient: SGDUpdate | DenseGradient,
    ) -> torch.Tensor:
        """Computes the gradients of the loss summed over the batch.

        Args:
            state: from `forward`. A second call with the same state computes the logits again.
            weight: (N, E), as in the forward pass.
            log_sum_exp: (G,) float64 over the logits of all ranks.
            center_gradient: is called with the gradient of each tile's centers.

        Returns:
            (G, E), this rank's summand of the feature gradient.
        """
        d_targets = (state.target_slope * torch.expm1(state.target_logits - log_sum_exp)).to(weight.dtype)
        d_unit = torch.zeros_like(state.unit)
        for number in range(len(state.tiles)):
            tile = self._probabilities(state, weight, number, log_sum_exp)
            self._backward_tile(state, number, tile, d_targets, d_unit, center_gradient)
            del tile  # before the next one takes as much memory
        remove_component(d_unit, state.unit, torch.ones_like(state.inverse_norm))
        return d_unit.mul_((self.margin_loss.scale * state.inverse_norm)[:, None])

    def _prepare(self, features, weight, columns, rows) -> StepState:
        batch, embedding_size = features.shape
        size = self.size or tile_classes(batch, embedding_size, "cpu" if features.device.type == "cpu" else "gpu")
        inverse_norm = inverse_norms(features)
        unit = features * inverse_norm[:, None]
        target_logits, target_slope = self._compute_targets(unit, weight, columns, rows)
        return StepState(
            tiles=_tiles(rows, len(weight), size),
            targets=_targets_by_tile(columns, len(weight if rows is None else rows), size),
            unit=unit,
            inverse_norm=inverse_norm,
            features=self.products.features(unit),
            target_logits=target_logits,
            target_slope=target_slope,
        )

    def _compute_targets(self, unit, weight, columns, rows) -> tuple[torch.Tensor, torch.Tensor]:
        """Target logits and slopes; -inf and 0 for the rows whose target another rank holds."""
        places = columns.clamp(min=0)
        centers = weight[places if rows is None else rows[places]]
        cosine = dot_rows(unit, centers).double() * inverse_norms(centers)
        value, slope = self.margin_loss.target(cosine)
        held = columns >= 0
        return torch.where(held, self.margin_loss.scale * value, -torch.inf), torch.where(held, slope, 0.0)

    def _forward_tile(
        self, state: StepState, weight: torch.Tensor, number: int, caching: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The maximum of each row, and its sum of exp(logit - maximum), both (G,)."""
        tile = self._compute_logits(state, weight, number)
        maximum = tile.logits.amax(dim=1)
        total = tile.logits.sub_(maximum[:, None]).exp_().sum(dim=1)
        if caching:
            state.cached.append(tile)
        return maximum, total

    def _backward_tile(
        self,
        state: StepState,
        number: int,
        tile: _TileLogits,
        d_targets: torch.Tensor,
        d_unit: torch.Tensor,
        center_gradient: SGDUpdate | DenseGradient,
    ) -> None:
        """Adds the gradient by the unit rows, divided by s, and passes on that by the centers."""
        centers = tile.weight, tile.inverse_norm
        operands = state.targets[number], d_targets, state.features, state.unit, *centers
        gradient = self.products.gradients(tile.logits, *operands, d_unit)
        center_gradient(state.tiles[number], tile.weight, gradient, tile.inverse_norm)

    def _fits_cache(self, batch: int, weight: torch.Tensor, rows: torch.Tensor | None) -> bool:
        numbers = len(weight) * batch if rows is None else len(rows) * (batch + weight.shape[1])
        return weight.element_size() * numbers <= self.logits_cache_bytes

    def _compute_logits(self, state: StepState, weight: torch.Tensor, number: int) -> _TileLogits:
        """The logits of a tile with the margin."""
        rows = state.tiles[number]
        centers = weight[rows] if isinstance(rows, slice) else weight.index_select(0, rows)
        inverse_norm = inverse_norms(centers)
        logits = self.products.logits(state.features, centers, inverse_norm)
        self.margin_loss.filter_negatives(logits)
        state.targets[number].scatter(logits, state.target_logits.to(logits.dtype))
        return _TileLogits(centers, inverse_norm, logits)

    def _probabilities(
        self, state: StepState, weight: torch.Tensor, number: int, log_sum_exp: torch.Tensor
    ) -> _TileLogits:
        """A tile whose logits have become probabilities of the undivided layer."""
        if state.cached:
            tile = state.cached.popleft()  # frees its memory after this tile
            tile.logits.mul_((state.maxima[number] - log_sum_exp).exp().to(tile.logits.dtype)[:, None])
        else:
            tile = self._compute_logits(state, weight, number)
            tile.logits.sub_(log_sum_exp.to(tile.logits.dtype)[:, None]).exp_()
        return tile


def _tiles(rows: torch.Tensor | None, num_rows: int, size: int) -> list[slice] | list[torch.Tensor]:
    """The rows of the centers of each tile: slices if the step has all rows."""
    if rows is not None:
        return list(rows.split(size))
    return [slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]


def _targets_by_tile(columns: torch.Tensor, sampled: int, size: int) -> list[TileTargets]:
    starts = torch.arange(0, sampled, size, device=columns.device)
    of_tile = columns - starts[:, None]
    # A tile that is smaller than the others is the last one, and no column is beyond it.
    inside = (of_tile >= 0) & (of_tile < size)
    return [TileTargets(*pair) for pair in zip(inside, of_tile.clamp(0, size - 1))]
