"""The classification layer's step on one rank, tile by tile: its part of one softmax over the centers of all ranks.

Two walks over the centers with the exchange of the ranks' statistics between them. The first computes each tile's
logits, their maximum and their sum of exponentials. The second turns them into probabilities of the whole layer,
takes both gradients and updates the tile's centers. What the first walk computed is kept for the second where it fits
into ``logits_cache_bytes``; else the second computes it again, and the memory of a step does not grow with the classes.

With unit rows x of the features and w of the centers, a logit is s x.w, or that of the margin for the G targets. For
p - onehot = D the gradients through the normalisation of a center W are dW = (g - (g.w) w) / |W| with g = s D^T x, and
likewise for a feature.

Shapes: G global batch, S centers of the step, T centers of a tile, E embedding.
"""

from __future__ import annotations

from typing import NamedTuple

import mxnet as mx
import numpy as np

from partial_fc.layer.margins import target_logit
from partial_fc.layer.softmax import combine_tiles
from partial_fc.layer.tiling import Tile, targets_by_tile, tile_classes, tiles_of
from partial_fc_mxnet.memory_bank import MemoryBank
from partial_fc_mxnet.memory_softmax import MarginLoss
from partial_fc_mxnet.ops.arithmetic import Vector, arithmetic_on, product
from partial_fc_mxnet.ops.buffers import Buffers
from partial_fc_mxnet.optimizer import MemoryBankSGDOptimizer


class _Scores(NamedTuple):
    """A tile's logits, or what they have become, and what they were made of."""

    weight: mx.nd.NDArray  # (T, E)
    d_weight: mx.nd.NDArray  # (T, E) that backward of the logits writes to
    inverse_norm: Vector  # (T,) of the weights
    logits: mx.nd.NDArray  # (G, T)


class _Step(NamedTuple):
    """What the second walk needs of the first."""

    unit: mx.nd.NDArray  # (G, E) normalised features
    inverse_norm: Vector  # (G,)
    scaled: mx.nd.NDArray  # (G, E) s times the normalised features
    d_scaled: mx.nd.NDArray  # (G, E) their gradient, summed over the tiles
    tiles: list[Tile]
    places: list  # rows and columns of the targets in each tile
    target: np.ndarray  # (G,) float64 target logits, -inf where the target is on another rank
    slope: np.ndarray  # (G,) float64 derivative of target logit / s by the cosine
    kept: list[_Scores]  # empty where the second walk computes them again
    largest: np.ndarray  # (tiles, G) float32 that the kept logits have been exponentiated with


class TiledMarginSoftmax:
    """A MarginLoss over the centers of this rank.

    Args:
        loss: its margins and scale.
        bank: the centers.
        context: where the step computes; the bank may be elsewhere.
        size: T, classes of a tile; 0 takes what suits the device.
        logits_cache_bytes: the most that a step keeps from its first walk for its second.
    """

    def __init__(self, loss: MarginLoss, bank: MemoryBank, context: mx.Context, size: int, logits_cache_bytes: int):
        self.loss = loss
        self.bank = bank
        self.context = context
        self.size = size
        self.logits_cache_bytes = logits_cache_bytes
        self._arithmetic = arithmetic_on(context)
        self._buffers = Buffers()
        self._step: _Step | None = None

    def statistics(self, features: mx.nd.NDArray, column: np.ndarray, local_index: np.ndarray) -> np.ndarray:
        """The first walk.

        Args:
            features: (G, E) float32 in this context.
            column: (G,) column of each row's target among the centers of the step, -1 where it is not here.
            local_index: (S,) sorted local indices of these centers, S at least 1.

        Returns:
            (3, G) float64: largest logit of each row, sum of exp(logit - largest), target logit or -inf.
        """
        step = self._begin(features, column, local_index)
        keeps = self._fits(len(column), step.tiles)
        largest, total = [], []
        for number in range(len(step.tiles)):
            # Gathered centers that are kept need a buffer each.
            scores = self._scores(step, number, buffer=f"weight{number}" if keeps else "weight", gradients=keeps)
            for values, value in zip((largest, total), self._arithmetic.exponentiate(scores.logits)):
                values.append(value)
            if keeps:
                step.kept.append(scores)
        largest, total = (self._arithmetic.to_host(values) for values in (largest, total))
        self._step = step._replace(largest=largest)
        return np.stack([*combine_tiles(largest, total), step.target])

    def gradients(self, log_sum_exp: np.ndarray, optimizer, learning_rate: float) -> mx.nd.NDArray:
        """The second walk, which also updates the centers.

        Args:
            log_sum_exp: (G,) of the logits of all ranks.
            optimizer: of the centers, see MemoryBankSGDOptimizer.update.
            learning_rate: for it.

        Returns:
            (G, E) float32, this rank's summand of the feature gradient of the summed loss.
        """
        step, self._step = self._step, None
        with np.errstate(invalid="ignore"):  # -inf - -inf, in rows whose target is elsewhere
            target_gradient = step.slope * np.expm1(step.target - log_sum_exp)
        step.d_scaled[:] = 0
        for number, tile in enumerate(step.tiles):
            scores = self._probabilities(step, number, log_sum_exp)
            rows, columns = step.places[number]
            self._arithmetic.put_entries(scores.logits, rows, columns, target_gradient[rows])
            self._arithmetic.scale_columns(scores.logits, scores.inverse_norm)
            scores.logits.backward(scores.logits)
            self._update(tile, scores, optimizer, learning_rate)
        return self._feature_gradient(step)

    def _begin(self, features, column, local_index) -> _Step:
        bank, arithmetic = self.bank, self._arithmetic
        batch, embedding_size = features.shape
        size = self.size or tile_classes(batch, embedding_size, self.context.device_type)
        every = len(local_index) == bank.num_local
        tiles = tiles_of(local_index, every, bank.centers.piece_rows, size)
        unit, inverse_norm = features.copy(), arithmetic.inverse_norms(features)
        arithmetic.scale_rows(unit, inverse_norm)
        target, slope = self._targets(unit, column, local_index)
        places = targets_by_tile(column, tiles)
        scaled, d_scaled = unit * self.loss.loss_s, self._buffers.get(self.context, "d_scaled", unit.shape)
        return _Step(unit, inverse_norm, scaled, d_scaled, tiles, places, target, slope, [], np.empty(0))

    def _targets(self, unit, column, local_index):
        """Target logits and slopes of the rows whose target is here, from the centers of these alone."""
        order = np.argsort(column, kind="stable")
        here = order[np.searchsorted(column[order], 0) :]
        target, slope = np.full(len(column), -np.inf), np.zeros(len(column))
        if len(here):
            arithmetic = self._arithmetic
            centers = self.bank.centers.gather(local_index[column[here]]).as_in_context(self.context)
            features = arithmetic.take(unit, here, self._buffer(self.context, "target_features", len(here)))
            products = [arithmetic.dot_rows(features, centers), arithmetic.inverse_norms(centers)]
            dots, inverse_norm = arithmetic.to_host(products).astype(np.float64)
            value, slope[here] = target_logit(dots * inverse_norm, self.loss.margins)
            target[here] = self.loss.loss_s * value
        return target, slope

    def _fits(self, batch: int, tiles: list[Tile]) -> bool:
        copied = tiles[0].gathered or self.bank.context != self.context
        numbers_of_class = batch + (self.bank.embedding_size if copied else 0)
        return 4 * numbers_of_class * tiles[-1].stop <= self.logits_cache_bytes

    def _scores(self, step: _Step, number: int, buffer: str, gradients: bool) -> _Scores:
        tile = step.tiles[number]
        weight = self._weight(tile, buffer)
        d_weight = self._buffer(self.context, "d_weight", len(weight))
        inverse_norm = self._arithmetic.inverse_norms(weight)
        logits = product(step.scaled, weight, (step.d_scaled, d_weight) if gradients else None)
        self._arithmetic.scale_columns(logits, inverse_norm)
        rows, columns = step.places[number]
        self._arithmetic.put_entries(logits, rows, columns, step.target[rows])
        return _Scores(weight, d_weight, inverse_norm, logits)

    def _probabilities(self, step: _Step, number: int, log_sum_exp: np.ndarray) -> _Scores:
        """A tile's logits turned into probabilities of the whole layer."""
        if step.kept:
            scores, step.kept[number] = step.kept[number], None  # its memory is free after this tile
            factors = np.exp(step.largest[number] - log_sum_exp)
            self._arithmetic.scale_rows(scores.logits, self._arithmetic.vector(factors))
        else:
            scores = self._scores(step, number, buffer="weight", gradients=True)
            self._arithmetic.exp_minus(scores.logits, log_sum_exp)
        return scores

    def _update(self, tile: Tile, scores: _Scores, optimizer, learning_rate: float) -> None:
        centers = self.bank.centers
        weight, d_weight = scores.weight, scores.d_weight
        if centers.context == self.context and _in_one_pass(optimizer, centers.context):
            rows = tile.rows if tile.gathered else None
            mom = centers.pieces[tile.piece].weight_mom if tile.gathered else centers.read(tile, None, "weight_mom")
            optimizer.update(weight, d_weight, mom, learning_rate, scores.inverse_norm, rows)
            centers.write(tile, weight)
            return
        self._arithmetic.remove_component(d_weight, weight, scores.inverse_norm)
        if centers.context != self.context:  # only the gradient travels
            out = self._buffer(centers.context, "bank_weight", len(weight)) if tile.gathered else None
            weight = centers.read(tile, out)
            d_weight = d_weight.copyto(self._buffer(centers.context, "bank_d_weight", len(weight)))
        out = self._buffer(centers.context, "mom", len(weight)) if tile.gathered else None
        mom = centers.read(tile, out, "weight_mom")
        optimizer.update(weight=weight, grad=d_weight, state=mom, learning_rate=learning_rate)
        centers.write(tile, weight)
        centers.write(tile, mom, "weight_mom")

    def _feature_gradient(self, step: _Step) -> mx.nd.NDArray:
        arithmetic = self._arithmetic
        arithmetic.remove_component(step.d_scaled, step.unit, arithmetic.vector(np.ones(len(step.unit))))
        arithmetic.scale_rows(step.d_scaled, step.inverse_norm * self.loss.loss_s)
        return step.d_scaled.copy()

    def _weight(self, tile: Tile, buffer: str) -> mx.nd.NDArray:
        """The centers of a tile in this context: the bank's own memory where that can be."""
        centers, rows = self.bank.centers, tile.stop - tile.start
        if centers.context == self.context:
            return centers.read(tile, self._buffer(self.context, buffer, rows) if tile.gathered else None)
        staged = centers.read(tile, self._buffer(centers.context, "bank_weight", rows) if tile.gathered else None)
        return staged.copyto(self._buffer(self.context, buffer, rows))

    def _buffer(self, context: mx.Context, name: str, rows: int) -> mx.nd.NDArray:
        return self._buffers.get_rows(context, name, rows, self.bank.embedding_size)


def _in_one_pass(optimizer, context: mx.Context) -> bool:
    """Whether its update takes inverse_norm and state_rows; one of a user's own need not."""
    own = isinstance(optimizer, MemoryBankSGDOptimizer) and type(optimizer).update is MemoryBankSGDOptimizer.update
    return own and context.device_type == "cpu"
