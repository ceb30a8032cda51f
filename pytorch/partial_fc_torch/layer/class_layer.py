"""The classification layer over the centers of all ranks: loss and gradients of a step.

Shapes: B local batch, R ranks, G = B*R global batch, C classes, S centers of the step on this rank, N rows from which
they are taken, E embedding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from partial_fc.distributed.collectives import Collectives
from partial_fc.layer.nonfinite import nonfinite_source
from partial_fc.layer.softmax import combine_statistics

from .center_gradients import DenseGradient, SGDUpdate
from .device import to_device
from .exchange import GlobalBatch, LayerExchange
from .margin_losses import CombinedMarginLoss
from .staging import StagedRows
from .tiled_softmax import StepState, TiledMarginSoftmax


class StepCenters(NamedTuple):
    """The centers of a step on this rank.

    Attributes:
        weight: (N, E), from which they are taken.
        rows: (S,) int64, which of them; None for all.
        columns: (G,) int64, column of each row's target among the S, -1 if it is not among them.
        staged: the rows that ``weight`` is a part of, if they are copies of rows on the host.
    """

    weight: torch.Tensor
    rows: torch.Tensor | None
    columns: torch.Tensor
    staged: StagedRows | None = None


@dataclass
class Step:
    """A step between its forward and its backward pass.

    Attributes:
        loss: mean over the global batch.
        log_sum_exp: (G,) float64 over the logits of all ranks.
        rank_flags: (R,) int64, the RankFlags of all ranks.
        features: (G, E) of all ranks.
        centers: of the step.
        state: of this rank's centers; None if it has none.
    """

    loss: float
    log_sum_exp: np.ndarray
    rank_flags: np.ndarray
    features: torch.Tensor
    centers: StepCenters
    state: StepState | None

    @property
    def gradient_scale(self) -> float:
        """1 / G, which turns the gradient of the summed loss into that of the mean loss."""
        return 1 / len(self.features)


class ClassLayer:
    """Loss and gradients over the centers of a step; it holds no centers itself.

    Args:
        margin_loss: margins and scale.
        collectives: of this process.
        num_classes: C.
        embedding_size: E.
        tile_classes, logits_cache_mb, dtype: see TiledMarginSoftmax; the cache in MiB.

    Attributes:
        requires_positives: False leaves out the rows whose center is not among those of the step, instead of an error.
    """

    def __init__(
        self,
        margin_loss: CombinedMarginLoss,
        collectives: Collectives,
        num_classes: int,
        embedding_size: int,
        tile_classes: int,
        logits_cache_mb: int,
        dtype: torch.dtype,
    ):
        self._size = collectives.size
        self._exchange = LayerExchange(collectives, num_classes, embedding_size)
        self.requires_positives = True
        self._softmax = TiledMarginSoftmax(margin_loss, tile_classes, logits_cache_mb << 20, dtype)

    @torch.no_grad()
    def forward(
        self, features: torch.Tensor, labels, flags: int, num_update: int, select: Callable[[torch.Tensor], StepCenters]
    ) -> Step | None:
        """Computes the loss over the centers of all ranks.

        Collectives: all-gathers ``features`` and ``softmax_statistics``, see LayerExchange.

        Args:
            features: (B, E) of this rank, in the type and on the device of the centers.
            labels: (B,) or (B, 1) integers in 0..C-1.
            flags: RankFlags of this rank.
            num_update: of this step, for the error message.
            select: returns the centers of the step for the labels (G,) int64 of the global batch.

        Returns:
            None, on every rank, if the ranks have agreed on another batch size: then the call has to be repeated.

        Raises:
            ValueError, TypeError: on every rank, see LayerExchange.agree.
            MissingPositiveError: on every rank, if the center of a label is not among those of the step.
            FloatingPointError: on every rank, if the loss is infinite or NaN.
        """
        batch = self._exchange.gather_batch(features, labels, flags)
        centers = select(batch.labels)
        state, statistics = self._own_statistics(batch, centers)
        gathered = self._exchange.gather_statistics(statistics, batch)
        if gathered is None:
            self._exchange.agree(features, labels)
            return None
        softmax = combine_statistics(gathered.softmax, gathered.labels, self.requires_positives)
        if not math.isfinite(softmax.loss):
            source = nonfinite_source(batch.features.cpu().numpy(), gathered.softmax, self._size)
            raise FloatingPointError(
                f"the loss is {softmax.loss} at update {num_update} ({source}): lower the learning rate, warm it up, "
                "clip the gradients, or check the images"
            )
        return Step(softmax.loss, softmax.log_sum_exp, gathered.rank_flags, batch.features, centers, state)

    @torch.no_grad()
    def backward(self, step: Step, center_gradient: SGDUpdate | DenseGradient) -> torch.Tensor:
        """Computes the gradients of a step.

        Collectives: reduce-scatter ``feature_gradient``.

        Args:
            step: from `forward`.
            center_gradient: is called with the gradient of the centers.

        Returns:
            (B, E), R times the gradient of the mean loss by the features of this rank. DistributedDataParallel averages
            the gradients of a backbone over the ranks; this factor makes the average the gradient of the mean loss.
        """
        if step.state is None:
            gradient = torch.zeros_like(step.features)
        else:
            weight = step.centers.weight
            with _full_precision(weight):
                log_sum_exp = to_device(step.log_sum_exp, weight.device)
                gradient = self._softmax.backward(step.state, weight, log_sum_exp, center_gradient)
        return self._exchange.sum_gradient(gradient).mul_(self._size * step.gradient_scale)

    def _own_statistics(self, batch: GlobalBatch, centers: StepCenters) -> tuple[StepState | None, torch.Tensor]:
        """The softmax statistics (3, G) of this rank's centers, and the state for the backward pass."""
        weight, rows, columns, _ = centers
        if not len(weight if rows is None else rows):
            empty = batch.features.new_zeros(3, len(batch.labels))
            empty[0::2] = -np.inf  # maxima and targets
            return None, empty
        with _full_precision(weight):
            return self._softmax.forward(batch.features, weight, columns, rows)


def _full_precision(weight: torch.Tensor):
    """A context in which a surrounding autocast does not change the type of the products."""
    return torch.autocast(weight.device.type, enabled=False)
