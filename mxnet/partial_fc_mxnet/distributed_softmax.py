"""The classification layer's step on one rank: its part of one softmax over the centers of all ranks.

Shapes: G global batch, R ranks, S sampled classes of this rank, E embedding.
"""

from __future__ import annotations

from typing import Callable

import mxnet as mx
import numpy as np

from partial_fc.softmax import GlobalSoftmax

from .memory_softmax import MarginLoss, write_targets

Exchange = Callable[[mx.nd.NDArray], GlobalSoftmax]


class AutogradLoss:
    """Gives a loss that only has ``forward(data, weight, mapping_label, depth)`` the two calls of MarginLoss.

    Whatever such a loss does, MXNet records it and differentiates it.
    """

    def __init__(self, fc7_model):
        self.fc7_model = fc7_model

    def logits(self, data, weight, column):
        """As MarginLoss.logits; the arrays get gradients attached."""
        data, weight = data.detach(), weight.detach()
        data.attach_grad()
        weight.attach_grad()
        with mx.autograd.record():
            logits, _ = self.fc7_model.forward(data, weight, mapping_label=column, depth=weight.shape[0])
        return logits.copy(), (data, weight, logits)

    def gradients(self, d_logits, forward):
        """As MarginLoss.gradients."""
        data, weight, logits = forward
        logits.backward(out_grad=d_logits)
        return data.grad, weight.grad


def explicit_loss(fc7_model):
    """The loss itself where its gradients are written out, else an adapter that records its ``forward``.

    A subclass of MarginLoss with a ``forward`` of its own means that one, so it is recorded too.
    """
    if isinstance(fc7_model, MarginLoss) and type(fc7_model).forward is MarginLoss.forward:
        return fc7_model
    return AutogradLoss(fc7_model)


def softmax_step(
    loss, data: mx.nd.NDArray, weight: mx.nd.NDArray, column: np.ndarray, exchange: Exchange
) -> tuple[mx.nd.NDArray, mx.nd.NDArray, float]:
    """Loss of the global batch and this rank's share of the gradients.

    Args:
        loss: what :func:`explicit_loss` returned.
        data: (G, E) float32 features of all ranks.
        weight: (S, E) float32 centers of this rank, S at least 1.
        column: (G,) column of each target, -1 where it is on another rank.
        exchange: this rank's (3, G) statistics -> the global softmax.

    Returns:
        (dX (G, E), this rank's summand of the feature gradient; dW (S, E); the loss). The gradients
        are of the summed loss: the optimizers' rescale_grad makes them those of the mean.
    """
    column = mx.nd.array(column, ctx=data.context, dtype="int32")
    logits, forward = loss.logits(data, weight, column)
    statistics, row_max = local_statistics(logits, column)
    softmax = exchange(statistics)
    # `logits` now holds exp(logit - row_max); this factor turns it into the probability of the whole layer.
    shift = mx.nd.array(softmax.log_sum_exp, ctx=data.context).reshape((-1, 1))
    probability = mx.nd.broadcast_mul(logits, mx.nd.exp(row_max - shift), out=logits)
    target = mx.nd.pick(probability, mx.nd.maximum(column, 0), axis=1)
    write_targets(probability, column, target - 1)
    d_data, d_weight = loss.gradients(probability, forward)
    return d_data, d_weight, softmax.loss


def local_statistics(logits: mx.nd.NDArray, column: mx.nd.NDArray) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
    """Replaces ``logits`` (G, S) by exp(logits - row maximum), and says what the other ranks must know.

    Returns:
        (statistics (3, G): row maximum, row sum, target logit or -inf; row maximum (G, 1)).
    """
    target = mx.nd.pick(logits, mx.nd.maximum(column, 0), axis=1)
    target = mx.nd.where(column >= 0, target, mx.nd.full(target.shape, -np.inf, ctx=target.context))
    row_max = mx.nd.max(logits, axis=1, keepdims=True)
    mx.nd.broadcast_sub(logits, row_max, out=logits)
    mx.nd.exp(logits, out=logits)
    row_sum = mx.nd.sum(logits, axis=1)
    return mx.nd.stack(row_max.reshape((-1,)), row_sum, target), row_max


def empty_statistics(batch: int, context: mx.Context) -> mx.nd.NDArray:
    """Statistics (3, G) of a rank that holds no center: it adds nothing and has no target."""
    return mx.nd.array(np.repeat([[-np.inf], [0.0], [-np.inf]], batch, axis=1), ctx=context)
