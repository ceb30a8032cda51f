"""The classification layer with a user's own loss, which autograd differentiates.

Shapes: G global batch, S sampled classes of this rank, E embedding.
"""

from typing import NamedTuple

import mxnet as mx
import numpy as np

from partial_fc_mxnet.memory_bank import MemoryBank


class _Step(NamedTuple):
    """The state of a step between its forward and its backward pass."""

    local_index: np.ndarray  # (S,) sorted local indices of the centers
    weight: mx.nd.NDArray  # (S, E) rows of the bank
    momentum: mx.nd.NDArray  # (S, E) rows of the bank
    recorded_features: mx.nd.NDArray  # (G, E) input of the recorded loss
    recorded_weight: mx.nd.NDArray  # (S, E) input of the recorded loss
    columns: mx.nd.NDArray  # (G,) int32 column of each row's target, -1 if this rank does not hold it
    logits: mx.nd.NDArray  # (G, S) output of the loss


class AutogradLoss:
    """Gives any object with ``forward(data, weight, mapping_label, depth)`` the interface of TiledMarginSoftmax.

    Its logits (G, S) and centers (S, E) are not tiled, and each must fit into one MXNet array.
    """

    def __init__(self, fc7_model, bank: MemoryBank, context: mx.Context):
        self.fc7_model = fc7_model
        self.bank = bank
        self.context = context
        self._state: _Step | None = None

    def forward(
        self,
        features: mx.nd.NDArray,
        columns: np.ndarray,
        local_index: np.ndarray,
        log_weights: np.ndarray | None = None,
    ) -> np.ndarray:
        """As TiledMarginSoftmax.forward."""
        data = features.detach()
        weight, momentum = (rows.as_in_context(self.context) for rows in self.bank.get(local_index))
        recorded = weight.detach()
        data.attach_grad()
        recorded.attach_grad()
        column = mx.nd.array(columns, ctx=self.context, dtype="int32")
        with mx.autograd.record():
            logits, _ = self.fc7_model.forward(data, recorded, mapping_label=column, depth=len(local_index))
            if log_weights is not None:
                logits = mx.nd.broadcast_add(logits, mx.nd.array(log_weights, ctx=self.context).reshape((1, -1)))
        self._state = _Step(local_index, weight, momentum, data, recorded, column, logits)
        target = mx.nd.pick(logits, mx.nd.maximum(column, 0), axis=1)
        target = mx.nd.where(column >= 0, target, mx.nd.full(target.shape, -np.inf, ctx=self.context))
        maximum = mx.nd.max(logits, axis=1, keepdims=True)
        total = mx.nd.sum(mx.nd.exp(mx.nd.broadcast_sub(logits, maximum)), axis=1)
        return mx.nd.stack(maximum.reshape((-1,)), total, target).asnumpy()

    def backward(self, log_sum_exp: np.ndarray, optimizer, learning_rate: float) -> mx.nd.NDArray:
        """As TiledMarginSoftmax.backward."""
        state, self._state = self._state, None
        assert state is not None, "backward needs the forward pass of the same step"
        shift = mx.nd.array(log_sum_exp, ctx=self.context).reshape((-1, 1))
        probability = mx.nd.exp(mx.nd.broadcast_sub(state.logits, shift))
        state.logits.backward(out_grad=probability - mx.nd.one_hot(state.columns, state.logits.shape[1]))
        gradient = state.recorded_weight.grad
        optimizer.update(weight=state.weight, grad=gradient, state=state.momentum, learning_rate=learning_rate)
        self.bank.set(state.local_index, state.weight, state.momentum)
        return state.recorded_features.grad
