"""The classification layer of one rank, tile by tile: its part of one softmax over the centers of all ranks.

The forward pass computes the logits of each tile, and of every row their maximum and their sum of exponentials. The
ranks exchange these statistics. The backward pass turns the logits of each tile into probabilities of the undivided
layer and computes both gradients; an object that is passed to it receives those of the centers. The logits are cached
between the passes if they fit into ``logits_cache_bytes``. Otherwise the backward pass computes them again, and the
memory of a step does not grow with the number of classes.

With the unit rows x = X / |X| of the features and w = W / |W| of the centers, a logit is s x.w; the margin changes only
the G target logits. With the probabilities p, D = p - onehot and g = s D^T x, the gradient through the normalization
of a center is dW = (g - (g.w) w) / |W|. The gradient of a feature has the same form.

Shapes: G global batch, L classes of this rank, S centers of the step, T centers of a tile, E embedding.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from partial_fc.layer.softmax import combine_tiles
from partial_fc.layer.tiling import Tile, targets_by_tile, tile_classes, tiles_of

from .margin_losses import CombinedMarginLoss
from .products import TileTargets, products_of
from .rows import inverse_norms, remove_component


class CenterGradient(Protocol):
    """Receives the gradient of the centers of the step, tile by tile, and may change the centers."""

    def __call__(
        self, rows: slice | torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor, inverse_norm: torch.Tensor
    ) -> None:
        """Takes one tile.

        Args:
            rows: the local indices of its centers, a slice or (T,) int64.
            weight: (T, E) its centers; a view of the layer's if ``rows`` is a slice, otherwise a copy.
            gradient: (T, E) of the summed loss, by the centers but for the component along each of them, which has to
                be removed; may be overwritten.
            inverse_norm: (T,) 1 / |W|.
        """


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
        tiles: of the step.
        index: (S,) int64, local indices of the centers, on the device.
        targets: those of each tile, on the device.
        unit: (G, E) unit rows x of the features.
        inverse_norm: (G,) 1 / |X|.
        features: (G, E) the unit rows as operand of the products.
        target_logits: (G,) float64, -inf where another rank holds the target.
        target_slope: (G,) float64, derivative of target logit / s by the cosine.
        cached: the tiles' exponentiated logits; empty if the backward pass computes the logits again.
        maxima: (tiles, G), the row maxima that were subtracted from the cached logits.
    """

    tiles: list[Tile]
    index: torch.Tensor
    targets: list[TileTargets]
    unit: torch.Tensor
    inverse_norm: torch.Tensor
    features: torch.Tensor
    target_logits: np.ndarray
    target_slope: np.ndarray
    cached: deque[_TileLogits] = field(default_factory=deque)
    maxima: np.ndarray = field(default_factory=lambda: np.empty(0))

    def vector(self, values: np.ndarray) -> torch.Tensor:
        """Returns values (G,) on the device, in the type of the features."""
        return torch.from_numpy(values).to(self.unit)

    def rows(self, number: int) -> slice | torch.Tensor:
        """Returns the local indices of the centers of a tile, a slice or (T,) int64 on the device."""
        tile = self.tiles[number]
        return tile.rows if isinstance(tile.rows, slice) else self.index[tile.start : tile.stop]


class TiledMarginSoftmax:
    """A margin softmax over the centers of this rank.

    Args:
        margin_loss: its margins and scale.
        size: T, classes of a tile; 0 selects a size that suits the device.
        logits_cache_bytes: upper limit of what a step caches between its two passes.
        dtype: of the operands of the products, see products.py.
    """

    def __init__(
        self,
        margin_loss: CombinedMarginLoss,
        size: int,
        logits_cache_bytes: int,
        dtype: torch.dtype = torch.float32,
    ):
        self.margin_loss = margin_loss
        self.products = products_of(dtype, margin_loss.scale)
        self.size = size
        self.logits_cache_bytes = logits_cache_bytes

    def forward(
        self, features: torch.Tensor, weight: torch.Tensor, columns: np.ndarray, local_index: np.ndarray
    ) -> tuple[StepState, np.ndarray]:
        """Computes the softmax statistics of this rank's centers.

        Args:
            features: (G, E) floating point.
            weight: (L, E) centers, of the same type and device.
            columns: (G,) column of each row's target among the centers of the step, -1 if it is not among them.
            local_index: (S,) sorted local indices of these centers, S at least 1.

        Returns:
            (state for :meth:`backward`, (3, G) float64: maximum logit of each row, sum of exp(logit - maximum), target
            logit or -inf).
        """
        state = self._prepare(features, weight, columns, local_index)
        caching = self._fits_cache(len(columns), weight, state.tiles)
        maxima, sums = zip(*(self._forward_tile(state, weight, number, caching) for number in range(len(state.tiles))))
        state.maxima, totals = torch.stack(maxima + sums).cpu().numpy().reshape(2, len(maxima), -1)
        return state, np.stack([*combine_tiles(state.maxima, totals), state.target_logits])

    def backward(
        self, state: StepState, weight: torch.Tensor, log_sum_exp: np.ndarray, center_gradient: CenterGradient
    ) -> torch.Tensor:
        """Computes the gradients of the loss summed over the batch.

        Args:
            state: from :meth:`forward`. A second call with the same state computes the logits again.
            weight: (L, E), as in the forward pass.
            log_sum_exp: (G,) float64 over the logits of all ranks.
            center_gradient: is called with the gradient of each tile's centers.

        Returns:
            (G, E), this rank's summand of the feature gradient.
        """
        with np.errstate(invalid="ignore"):  # -inf - -inf in the rows whose target another rank holds
            target_gradient = state.vector(state.target_slope * np.expm1(state.target_logits - log_sum_exp))
        d_unit = torch.zeros_like(state.unit)
        for number, targets in enumerate(state.targets):
            tile = self._probabilities(state, weight, number, log_sum_exp)
            self._backward_tile(state, number, tile, target_gradient[targets.rows], d_unit, center_gradient)
            del tile  # before the next one takes as much memory
        remove_component(d_unit, state.unit, torch.ones_like(state.inverse_norm))
        return d_unit.mul_((self.margin_loss.scale * state.inverse_norm)[:, None])

    def _prepare(self, features, weight, columns, local_index) -> StepState:
        batch, embedding_size = features.shape
        size = self.size or tile_classes(batch, embedding_size, "cpu" if features.device.type == "cpu" else "gpu")
        tiles = tiles_of(local_index, len(local_index) == len(weight), len(weight), size)
        inverse_norm = inverse_norms(features)
        unit = features * inverse_norm[:, None]
        target_rows, target_columns = zip(*targets_by_tile(columns, tiles))
        target_logits, target_slope = self._compute_targets(unit, weight, columns, local_index)
        return StepState(
            tiles=tiles,
            index=torch.from_numpy(local_index).to(features.device),
            targets=[
                TileTargets(*pair)
                for pair in zip(_on_device(target_rows, features.device), _on_device(target_columns, features.device))
            ],
            unit=unit,
            inverse_norm=inverse_norm,
            features=self.products.features(unit),
            target_logits=target_logits,
            target_slope=target_slope,
        )

    def _compute_targets(self, unit, weight, columns, local_index) -> tuple[np.ndarray, np.ndarray]:
        """Target logits and slopes of the rows whose target this rank holds, from the target centers alone."""
        rows = np.flatnonzero(columns >= 0)
        target_logits, target_slope = np.full(len(columns), -np.inf), np.zeros(len(columns))
        if len(rows):
            centers = weight[torch.from_numpy(local_index[columns[rows]]).to(weight.device)]
            dots = (unit[torch.from_numpy(rows).to(unit.device)] * centers).sum(dim=1)
            cosine = np.prod(torch.stack([dots, inverse_norms(centers)]).cpu().numpy(), axis=0, dtype=np.float64)
            value, target_slope[rows] = self.margin_loss.target(cosine)
            target_logits[rows] = self.margin_loss.scale * value
        return target_logits, target_slope

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
        center_gradient: CenterGradient,
    ) -> None:
        """Adds the gradient by the unit rows, divided by s, and passes on that by the centers."""
        centers = tile.weight, tile.inverse_norm
        operands = state.targets[number], d_targets, state.features, state.unit, *centers
        gradient = self.products.gradients(tile.logits, *operands, d_unit)
        center_gradient(state.rows(number), tile.weight, gradient, tile.inverse_norm)

    def _fits_cache(self, batch: int, weight: torch.Tensor, tiles: list[Tile]) -> bool:
        numbers_per_class = batch + (weight.shape[1] if tiles[0].gathered else 0)
        return weight.element_size() * numbers_per_class * tiles[-1].stop <= self.logits_cache_bytes

    def _compute_logits(self, state: StepState, weight: torch.Tensor, number: int) -> _TileLogits:
        """The logits of a tile with the margin."""
        centers = weight[state.rows(number)]
        inverse_norm = inverse_norms(centers)
        logits = self.products.logits(state.features, centers, inverse_norm)
        targets = state.targets[number]
        logits[targets.rows, targets.columns] = state.vector(state.target_logits)[targets.rows]
        return _TileLogits(centers, inverse_norm, logits)

    def _probabilities(
        self, state: StepState, weight: torch.Tensor, number: int, log_sum_exp: np.ndarray
    ) -> _TileLogits:
        """A tile whose logits have become probabilities of the undivided layer."""
        if state.cached:
            tile = state.cached.popleft()  # frees its memory after this tile
            tile.logits.mul_(state.vector(np.exp(state.maxima[number] - log_sum_exp))[:, None])
        else:
            tile = self._compute_logits(state, weight, number)
            tile.logits.sub_(state.vector(log_sum_exp)[:, None]).exp_()
        return tile


def _on_device(parts, device: torch.device) -> list[torch.Tensor]:
    """Copies integer arrays to the device, in one transfer."""
    together = torch.from_numpy(np.concatenate(parts)).to(device)
    return list(together.split([len(part) for part in parts]))
