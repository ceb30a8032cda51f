"""The classification layer of one rank, which exchanges only statistics (3, G) with the other ranks.

Shapes: G global batch, R ranks, S sampled classes of this rank, E embedding.
"""

from collections.abc import Callable

import mxnet as mx
import numpy as np

from partial_fc.layer.sampling import UNKNOWN_PROBABILITIES, label_columns, log_weights
from partial_fc.layer.softmax import GlobalSoftmax, combine_statistics
from partial_fc_mxnet.memory_bank import MemoryBank
from partial_fc_mxnet.memory_softmax import MarginLoss

from .autograd_loss import AutogradLoss
from .tiled_softmax import TiledMarginSoftmax


class ClassLayer:
    """Loss and gradients over the centers of a step.

    Args:
        fc7_model: the loss. TiledMarginSoftmax computes a MarginLoss; any other object with the same ``forward``
            method, or a subclass that overrides it, is differentiated by autograd.
        bank: the centers of this rank.
        context: where the step computes.
        tile_classes, logits_cache_mb: see TiledMarginSoftmax; the cache in MiB.
    """

    def __init__(self, fc7_model, bank: MemoryBank, context: mx.Context, tile_classes: int, logits_cache_mb: int):
        self.bank = bank
        self._empty = False
        self._loss: TiledMarginSoftmax | AutogradLoss
        if isinstance(fc7_model, MarginLoss) and type(fc7_model).forward is MarginLoss.forward:
            self._loss = TiledMarginSoftmax(fc7_model, bank, context, tile_classes, logits_cache_mb << 20)
        else:
            self._loss = AutogradLoss(fc7_model, bank, context)

    def forward(
        self,
        features: mx.nd.NDArray,
        labels: np.ndarray,
        local_index: np.ndarray,
        exchange: Callable[[np.ndarray], np.ndarray],
    ) -> GlobalSoftmax:
        """Computes the softmax over the centers of all ranks.

        Args:
            features: (G, E) float32.
            labels: (G,) int64.
            local_index: (S,) sorted local indices of the centers of the step, S = 0 if this rank has none.
            exchange: gathers the statistics (3, G) of all ranks, in rank order: (3R, G).

        Raises:
            MissingPositiveError: on every rank, if the step lacks the center of a label.
            ValueError: on every rank, if the bank corrects for its sampling, but the user has replaced its ``sample``.
        """
        if self.bank.sampling_correction and getattr(self.bank.sample, "__func__", None) is not MemoryBank.sample:
            raise ValueError(UNKNOWN_PROBABILITIES)
        self.bank.centers.prefetch(local_index)
        self._empty = len(local_index) == 0
        if self._empty:
            # Without centers: maximum, sum and target logit, as combine_statistics expects them.
            statistics = np.repeat([[-np.inf], [0.0], [-np.inf]], len(labels), axis=1)
        else:
            columns = label_columns(labels, local_index, self.bank.class_start)
            statistics = self._loss.forward(features, columns, local_index, self._log_weights(columns, local_index))
        gathered = exchange(statistics).reshape(-1, 3, len(labels))
        return combine_statistics(gathered, labels, self.bank.requires_positives)

    def _log_weights(self, columns: np.ndarray, local_index: np.ndarray) -> np.ndarray | None:
        """Returns (S,) float64 for the centers of the step, see sampling.log_weights; None if all are 0."""
        if not self.bank.sampling_correction or len(local_index) == self.bank.num_local:
            return None
        drawn = np.ones(len(local_index) + 1, bool)
        drawn[columns] = False  # -1, a row without its target here, marks the extra entry at the end
        return log_weights(drawn[:-1], self.bank.num_local)

    def backward(self, softmax: GlobalSoftmax, optimizer, learning_rate: float) -> mx.nd.NDArray | None:
        """Updates the centers of the last forward pass.

        Returns:
            (G, E) float32, the contribution of this rank's centers to the gradient of the summed loss with respect to
            the features; None if this rank has no centers.
        """
        return None if self._empty else self._loss.backward(softmax.log_sum_exp, optimizer, learning_rate)
