"""The classification layer's step with a user's own loss, which MXNet records and differentiates.

Shapes: G global batch, S sampled classes of this rank, E embedding.
"""

from __future__ import annotations

import mxnet as mx
import numpy as np

from partial_fc_mxnet.memory_bank import MemoryBank


class RecordedLoss:
    """Any object with ``forward(data, weight, mapping_label, depth)``, in the two calls of TiledMarginSoftmax.

    Its logits (G, S) and centers (S, E) exist as a whole, and each must fit into one MXNet array.

    Args:
        fc7_model: that object.
        bank: the centers.
        context: where the step computes.
    """

    def __init__(self, fc7_model, bank: MemoryBank, context: mx.Context):
        self.fc7_model = fc7_model
        self.bank = bank
        self.context = context
        self._step: tuple | None = None

    def statistics(self, features: mx.nd.NDArray, column: np.ndarray, local_index: np.ndarray) -> np.ndarray:
        """As TiledMarginSoftmax.statistics."""
        data = features.detach()
        rows = tuple(rows.as_in_context(self.context) for rows in self.bank.get(local_index))
        weight = rows[0].detach()
        data.attach_grad()
        weight.attach_grad()
        column = mx.nd.array(column, ctx=self.context, dtype="int32")
        with mx.autograd.record():
            logits, _ = self.fc7_model.forward(data, weight, mapping_label=column, depth=len(local_index))
        self._step = local_index, rows, data, weight, column, logits
        target = mx.nd.pick(logits, mx.nd.maximum(column, 0), axis=1)
        target = mx.nd.where(column >= 0, target, mx.nd.full(target.shape, -np.inf, ctx=self.context))
        largest = mx.nd.max(logits, axis=1, keepdims=True)
        total = mx.nd.sum(mx.nd.exp(mx.nd.broadcast_sub(logits, largest)), axis=1)
        return mx.nd.stack(largest.reshape((-1,)), total, target).asnumpy()

    def gradients(self, log_sum_exp: np.ndarray, optimizer, learning_rate: float) -> mx.nd.NDArray:
        """As TiledMarginSoftmax.gradients."""
        (local_index, (weight, mom), data, recorded, column, logits), self._step = self._step, None
        shift = mx.nd.array(log_sum_exp, ctx=self.context).reshape((-1, 1))
        probability = mx.nd.exp(mx.nd.broadcast_sub(logits, shift))
        logits.backward(out_grad=probability - mx.nd.one_hot(column, logits.shape[1]))
        optimizer.update(weight=weight, grad=recorded.grad, state=mom, learning_rate=learning_rate)
        self.bank.set(local_index, weight, mom)
        return data.grad
