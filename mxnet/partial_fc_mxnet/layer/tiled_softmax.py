"""The classification layer of one rank, tile by tile: its part of one softmax over the centers of all ranks.

The forward pass computes the logits of each tile, and each row's maximum and sum of exponentials. The ranks exchange
these statistics. The backward pass turns the logits of each tile into probabilities over all ranks, computes both
gradients and updates the centers of the tile. The logits are cached between the passes if they fit into
``logits_cache_bytes``. Otherwise the backward pass computes them again, and the memory of a step does not grow with the
number of classes.

With the unit rows x = X / |X| of the features and w = W / |W| of the centers, a logit is s x.w; the margin changes only
the G target logits. With the probabilities p, D = p - onehot and g = s D^T x, the gradient through the normalization
of a center is dW = (g - (g.w) w) / |W|. The gradient of a feature has the same form.

Shapes: G global batch, S centers of the step, T centers of a tile, E embedding.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import mxnet as mx
import numpy as np

from partial_fc.layer.margins import target_logit
from partial_fc.layer.softmax import combine_tiles
from partial_fc.layer.tiling import Tile, targets_by_tile, tile_classes, tiles_of
from partial_fc_mxnet.memory_bank import MemoryBank
from partial_fc_mxnet.memory_softmax import LOWEST, MarginLoss
from partial_fc_mxnet.ops.arithmetic import Vector, arithmetic_on, product
from partial_fc_mxnet.ops.memory import Buffers
from partial_fc_mxnet.optimizer import MemoryBankSGDOptimizer


class _TileLogits(NamedTuple):
    """The logits of one tile and the arrays that they depend on."""

    weight: mx.nd.NDArray  # (T, E) centers
    d_weight: mx.nd.NDArray  # (T, E) gradient array that ``logits.backward`` overwrites
    inverse_norm: Vector  # (T,) 1 / |W| of the centers
    logits: mx.nd.NDArray  # (G, T); the passes overwrite them with exponentials, probabilities and gradients


@dataclass
class _Step:
    """The state of a step between its forward and its backward pass."""

    tiles: list[Tile]
    tile_targets: list[tuple[np.ndarray, np.ndarray]]  # see targets_by_tile
    unit: mx.nd.NDArray  # (G, E) unit rows x of the features
    inverse_norm: Vector  # (G,) 1 / |X| of the features
    scaled: mx.nd.NDArray  # (G, E) s x
    d_scaled: mx.nd.NDArray  # (G, E) gradient of ``scaled``, summed over the tiles
    target_logits: np.ndarray  # (G,) float64, -inf where another rank holds the target
    target_slope: np.ndarray  # (G,) float64, derivative of target logit / s with respect to the cosine
    log_weights: np.ndarray | None  # (S,) added to the logits, see partial_fc/layer/sampling.py; None adds nothing
    # The tiles' exponentiated logits; empty if the backward pass computes the logits again.
    cached: deque[_TileLogits] = field(default_factory=deque)
    # (tiles, G) float64, the row maxima that the forward pass subtracted from the logits of each tile.
    maxima: np.ndarray = field(default_factory=lambda: np.empty(0))


class TiledMarginSoftmax:
    """A MarginLoss over the centers of this rank.

    Args:
        loss: has the margins and the scale.
        bank: the centers of this rank.
        context: where the step computes; the bank may be in another context.
        size: T, classes per tile; 0 selects a size that suits the device.
        logits_cache_bytes: maximum size of the logits that a step caches between its two passes.
    """

    def __init__(self, loss: MarginLoss, bank: MemoryBank, context: mx.Context, size: int, logits_cache_bytes: int):
        self.loss = loss
        self.bank = bank
        self.context = context
        self.size = size
        self.logits_cache_bytes = logits_cache_bytes
        self._arithmetic = arithmetic_on(context)
        self._buffers = Buffers()
        self._state: _Step | None = None

    def forward(
        self,
        features: mx.nd.NDArray,
        columns: np.ndarray,
        local_index: np.ndarray,
        log_weights: np.ndarray | None = None,
    ) -> np.ndarray:
        """Computes the softmax statistics of this rank's centers.

        Args:
            features: (G, E) float32 in this context.
            columns: (G,) column of each row's target among the centers of the step, -1 if it is not among them.
            local_index: (S,) sorted local indices of these centers, S at least 1.
            log_weights: (S,) added to the logits of these centers, see partial_fc/layer/sampling.py; None adds nothing.

        Returns:
            (3, G) float64: maximum logit of each row, sum of exp(logit - maximum), target logit or -inf.
        """
        batch, embedding_size = features.shape
        size = self.size or tile_classes(batch, embedding_size, self.context.device_type)
        contiguous = len(local_index) == self.bank.num_local
        tiles = tiles_of(local_index, contiguous, self.bank.centers.piece_rows, size)
        unit, inverse_norm = features.copy(), self._arithmetic.inverse_norms(features)
        self._arithmetic.scale_rows(unit, inverse_norm)
        target_logits, target_slope = self._compute_targets(unit, columns, local_index)
        self._state = state = _Step(
            tiles=tiles,
            tile_targets=targets_by_tile(columns, tiles),
            unit=unit,
            inverse_norm=inverse_norm,
            scaled=unit * self.loss.loss_s,
            d_scaled=self._buffers.get(self.context, "d_scaled", unit.shape),
            target_logits=target_logits,
            target_slope=target_slope,
            log_weights=log_weights,
        )
        copied = tiles[0].gathered or self.bank.context != self.context
        floats_per_class = batch + (embedding_size if copied else 0)
        caching = 4 * floats_per_class * len(local_index) <= self.logits_cache_bytes
        maxima, sums = [], []
        for number in range(len(tiles)):
            # The backward pass needs the centers of a cached tile, so each of these tiles has its own buffer.
            buffer = f"weight{number}" if caching else "weight"
            tile_logits = self._logits(state, number, buffer, differentiable=caching)
            maximum, total = self._arithmetic.exponentiate(tile_logits.logits)
            maxima.append(maximum)
            sums.append(total)
            if caching:
                state.cached.append(tile_logits)
        state.maxima, totals = (self._arithmetic.to_host(vectors).astype(np.float64) for vectors in (maxima, sums))
        return np.stack([*combine_tiles(state.maxima, totals), state.target_logits])

    def backward(self, log_sum_exp: np.ndarray, optimizer, learning_rate: float) -> mx.nd.NDArray:
        """Updates the centers of the last forward pass.

        Args:
            log_sum_exp: (G,) over the logits of all ranks.
            optimizer: updates the centers, see MemoryBankSGDOptimizer.
            learning_rate: rate of this update.

        Returns:
            (G, E) float32, this rank's summand of the feature gradient of the summed loss.
        """
        state, self._state = self._state, None
        assert state is not None, "backward needs the forward pass of the same step"
        arithmetic = self._arithmetic
        with np.errstate(invalid="ignore"):  # -inf - -inf in the rows whose target another rank holds
            target_gradient = state.target_slope * np.expm1(state.target_logits - log_sum_exp)
        state.d_scaled[:] = 0
        for number, tile in enumerate(state.tiles):
            # The logits become probabilities over the centers of all ranks.
            if state.cached:
                tile_logits = state.cached.popleft()  # frees its memory after this tile
                factors = np.exp(state.maxima[number] - log_sum_exp)
                arithmetic.scale_rows(tile_logits.logits, arithmetic.vector(factors))
            else:
                tile_logits = self._logits(state, number, "weight", differentiable=True)
                arithmetic.exp_minus(tile_logits.logits, log_sum_exp)
            rows, columns = state.tile_targets[number]
            arithmetic.scatter_entries(tile_logits.logits, rows, columns, target_gradient[rows])
            arithmetic.scale_columns(tile_logits.logits, tile_logits.inverse_norm)
            # The array of the products now holds their gradient. FullyConnected's backward reads the gradient and the
            # inputs, not the products, so no second (G, T) array is needed.
            tile_logits.logits.backward(tile_logits.logits)
            self._update(tile, tile_logits, optimizer, learning_rate)
        arithmetic.remove_component(state.d_scaled, state.unit, arithmetic.vector(np.ones(len(state.unit))))
        arithmetic.scale_rows(state.d_scaled, state.inverse_norm * self.loss.loss_s)
        return state.d_scaled.copy()

    def _compute_targets(self, unit, columns, local_index) -> tuple[np.ndarray, np.ndarray]:
        """Returns target logits and slopes of the rows whose target this rank holds, from the target centers alone."""
        order = np.argsort(columns, kind="stable")
        rows = order[np.searchsorted(columns[order], 0) :]  # without the -1, sorted by center
        target_logits, target_slope = np.full(len(columns), -np.inf), np.zeros(len(columns))
        if len(rows):
            arithmetic = self._arithmetic
            centers = self.bank.centers.gather(local_index[columns[rows]]).as_in_context(self.context)
            features = arithmetic.gather(unit, rows, self._buffer(self.context, "target_features", len(rows)))
            vectors = [arithmetic.dot_rows(features, centers), arithmetic.inverse_norms(centers)]
            dots, inverse_norm = arithmetic.to_host(vectors).astype(np.float64)
            value, target_slope[rows] = target_logit(dots * inverse_norm, self.loss.margins)
            target_logits[rows] = self.loss.loss_s * value
        return target_logits, target_slope

    def _logits(self, state: _Step, number: int, buffer: str, differentiable: bool) -> _TileLogits:
        """Returns the logits of a tile with the margin; ``buffer`` holds its centers if they have to be copied."""
        tile, same_context = state.tiles[number], self.bank.context == self.context
        weight = self._read(tile, buffer if same_context else "bank_weight")
        if not same_context:
            weight = weight.copyto(self._buffer(self.context, buffer, len(weight)))
        d_weight = self._buffer(self.context, "d_weight", len(weight))
        inverse_norm = self._arithmetic.inverse_norms(weight)
        logits = product(state.scaled, weight, (state.d_scaled, d_weight) if differentiable else None)
        self._arithmetic.scale_columns(logits, inverse_norm)
        if self.loss.interclass_filtering_threshold:
            highest = self.loss.loss_s * self.loss.interclass_filtering_threshold
            self._arithmetic.replace_above(logits, highest, LOWEST)
        if state.log_weights is not None:
            self._arithmetic.add_to_columns(logits, state.log_weights[tile.start : tile.stop])
        rows, columns = state.tile_targets[number]
        self._arithmetic.scatter_entries(logits, rows, columns, state.target_logits[rows])
        return _TileLogits(weight, d_weight, inverse_norm, logits)

    def _update(self, tile: Tile, tile_logits: _TileLogits, optimizer, learning_rate: float) -> None:
        """Projects the gradient, and updates centers and momentum where the bank keeps them."""
        centers, weight, d_weight = self.bank.centers, tile_logits.weight, tile_logits.d_weight
        # The fused update reads and writes each row once, see layer/sgd.py. A user's own optimizer need not support it.
        fused = getattr(type(optimizer), "update", None) is MemoryBankSGDOptimizer.update
        if fused and self.context.device_type == "cpu" and centers.context == self.context:
            if tile.gathered:
                momentum, rows = centers.pieces[tile.piece].weight_mom, tile.rows
            else:
                momentum, rows = centers.read(tile, None, "weight_mom"), None
            optimizer.update(weight, d_weight, momentum, learning_rate, tile_logits.inverse_norm, rows)
            centers.write(tile, weight)
            return
        self._arithmetic.remove_component(d_weight, weight, tile_logits.inverse_norm)
        if centers.context != self.context:  # copy only the gradient to the bank
            weight = self._read(tile, "bank_weight")
            d_weight = d_weight.copyto(self._buffer(centers.context, "bank_d_weight", len(weight)))
        momentum = self._read(tile, "mom", "weight_mom")
        optimizer.update(weight=weight, grad=d_weight, state=momentum, learning_rate=learning_rate)
        centers.write(tile, weight)
        centers.write(tile, momentum, "weight_mom")

    def _read(self, tile: Tile, buffer: str, name: str = "weight") -> mx.nd.NDArray:
        """Returns centers or momentum (T, E) of a tile in the bank's context; the buffer holds gathered rows only."""
        centers = self.bank.centers
        out = self._buffer(centers.context, buffer, tile.stop - tile.start) if tile.gathered else None
        return centers.read(tile, out, name)

    def _buffer(self, context: mx.Context, name: str, rows: int) -> mx.nd.NDArray:
        return self._buffers.get_rows(context, name, rows, self.bank.embedding_size)
