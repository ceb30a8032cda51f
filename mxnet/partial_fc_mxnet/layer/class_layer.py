"""The classification layer of one rank, which knows of the other ranks by an exchange of three numbers a row.

Shapes: G global batch, R ranks, S sampled classes of this rank, E embedding.
"""

from __future__ import annotations

from collections.abc import Callable

import mxnet as mx
import numpy as np

from partial_fc.layer.sampling import label_columns
from partial_fc.layer.softmax import GlobalSoftmax, combine_statistics
from partial_fc_mxnet.memory_bank import MemoryBank
from partial_fc_mxnet.memory_softmax import MarginLoss

from .autograd_loss import RecordedLoss
from .tiled_softmax import TiledMarginSoftmax


class ClassLayer:
    """Loss and gradients over the centers of a step.

    Args:
        fc7_model: MarginLoss, whose gradients are written out, or any object with its ``forward``, which is recorded;
            so is a subclass of MarginLoss with a ``forward`` of its own.
        bank: the centers of this rank.
        context: where the step computes.
        tile_classes, logits_cache_mb: of TiledMarginSoftmax.
    """

    def __init__(self, fc7_model, bank: MemoryBank, context: mx.Context, tile_classes: int, logits_cache_mb: int):
        self.bank = bank
        self._empty = False
        if isinstance(fc7_model, MarginLoss) and type(fc7_model).forward is MarginLoss.forward:
            self._loss = TiledMarginSoftmax(fc7_model, bank, context, tile_classes, logits_cache_mb << 20)
        else:
            self._loss = RecordedLoss(fc7_model, bank, context)

    def forward(
        self,
        features: mx.nd.NDArray,
        labels: np.ndarray,
        local_index: np.ndarray,
        exchange: Callable[[np.ndarray], np.ndarray],
    ) -> GlobalSoftmax:
        """The softmax over the centers of all ranks.

        Args:
            features: (G, E) float32.
            labels: (G,) int64.
            local_index: (S,) sorted local indices of the centers of the step, S = 0 where this rank holds none.
            exchange: this rank's (3, G) statistics -> (3R, G), those of all ranks in their order.

        Raises:
            MissingPositiveError: on every rank, where a label's center is not among those of the step.
        """
        self.bank.centers.prefetch(local_index)
        column = label_columns(labels, local_index, self.bank.class_start)
        self._empty = len(local_index) == 0
        if self._empty:
            statistics = np.repeat([[-np.inf], [0.0], [-np.inf]], len(labels), axis=1)
        else:
            statistics = self._loss.statistics(features, column, local_index)
        return combine_statistics(exchange(statistics).reshape(-1, 3, len(labels)), labels)

    def backward(self, softmax: GlobalSoftmax, optimizer, learning_rate: float) -> mx.nd.NDArray | None:
        """Updates the centers of the last forward.

        Returns:
            (G, E) float32, this rank's summand of the feature gradient of the summed loss; None without centers.
        """
        return None if self._empty else self._loss.gradients(softmax.log_sum_exp, optimizer, learning_rate)
