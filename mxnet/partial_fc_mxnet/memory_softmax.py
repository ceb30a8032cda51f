"""Margin softmax over the class centers of one rank: logits and their exact gradients.

Target logit: ``s * (psi(m1 * theta + m2) - m3)`` with theta the angle between feature and center; every
other logit is ``s * cos(theta)``. ArcFace (1, 0.5, 0), CosFace (1, 0, 0.4), SphereFace (m, 0, 0).

``psi(a)`` is ``cos(a)`` up to a = pi. Past pi a cosine would rise again and reward a feature for turning
away from its center, so psi goes on as ``(-1)^k cos(a) - 2k`` with ``k = floor(a / pi)``: continuous, with a
continuous derivative, and falling all the way (SphereFace, arXiv 1704.08063, equation 7).

Shapes: G global batch, S sampled classes of this rank, E embedding.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import mxnet as mx

# sin(theta) below this is not resolved in float32: a cosine next to 1 moves in steps of 2^-24, whose
# root is 2^-12. Dividing by no less keeps the derivative finite where feature and center coincide;
# there it multiplies (center - cos * feature), which is zero.
MIN_SINE = 2.0**-12

# Under the root of a squared norm, so that a zero row has a norm; the same as L2Normalization's.
NORM_EPSILON = 1e-10


class Forward(NamedTuple):
    """What the gradients need of the forward pass."""

    data: mx.nd.NDArray  # (G, E) normalised features
    data_norm: mx.nd.NDArray  # (G, 1)
    weight: mx.nd.NDArray  # (S, E) normalised centers
    weight_norm: mx.nd.NDArray  # (S, 1)
    column: mx.nd.NDArray  # (G,) column of the target, -1 where it is not here
    slope: mx.nd.NDArray  # (G,) derivative of target logit / s by the cosine


class MarginLoss:
    """Combined-margin softmax loss on cosines.

    Args:
        margins: (m1, m2, m3) of the target logit above.
        loss_s: the scale s.
        embedding_size: E.
    """

    def __init__(self, margins=(1.0, 0.5, 0.0), loss_s: float = 64, embedding_size: int = 512):
        self.m1, self.m2, self.m3 = margins
        self.loss_s = loss_s
        self.embedding_size = embedding_size

    def forward(
        self, data: mx.nd.NDArray, weight: mx.nd.NDArray, mapping_label: mx.nd.NDArray, depth: int
    ) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
        """The textbook form, for ``autograd.record``: an oracle and a baseline, not the fast path.

        Args:
            data: (G, E) float32 features.
            weight: (S, E) float32 centers.
            mapping_label: (G,) column of each row's target, -1 where it is not here.
            depth: S.

        Returns:
            (logits (G, S), one-hot targets (G, S), with rows of zeros for -1).
        """
        one_hot = mx.nd.one_hot(mapping_label, depth)
        data, weight = mx.nd.L2Normalization(data), mx.nd.L2Normalization(weight)
        cosine = mx.nd.FullyConnected(data, weight, no_bias=True, num_hidden=depth)
        target = mx.nd.sum(cosine * one_hot, axis=1, keepdims=True)
        margin_target, _ = self.target_logit(target)
        return self.loss_s * (cosine + one_hot * (margin_target - target)), one_hot

    def logits(
        self, data: mx.nd.NDArray, weight: mx.nd.NDArray, column: mx.nd.NDArray
    ) -> tuple[mx.nd.NDArray, Forward]:
        """The logits, without recording, with the margin applied to the G targets alone.

        Args:
            data: (G, E) float32 features.
            weight: (S, E) float32 centers, S at least 1.
            column: (G,) integers, column of each row's target, -1 where it is not here.

        Returns:
            (logits (G, S), what :meth:`gradients` needs).
        """
        data, data_norm = _normalize(data)
        weight, weight_norm = _normalize(weight)
        logits = mx.nd.FullyConnected(data, weight, no_bias=True, num_hidden=weight.shape[0])
        cosine = mx.nd.pick(logits, mx.nd.maximum(column, 0), axis=1)
        target, slope = self.target_logit(cosine)
        logits *= self.loss_s
        write_targets(logits, column, self.loss_s * target)
        return logits, Forward(data, data_norm, weight, weight_norm, column, slope)

    def gradients(self, d_logits: mx.nd.NDArray, forward: Forward) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
        """Gradients of features and centers from that of the logits, which is overwritten.

        Returns:
            (dX (G, E), dW (S, E)), both float32.
        """
        here = mx.nd.pick(d_logits, mx.nd.maximum(forward.column, 0), axis=1)
        write_targets(d_logits, forward.column, here * forward.slope)
        d_logits *= self.loss_s
        d_data = _through_normalize(mx.nd.dot(d_logits, forward.weight), forward.data, forward.data_norm)
        d_weight = mx.nd.dot(d_logits, forward.data, transpose_a=True)
        return d_data, _through_normalize(d_weight, forward.weight, forward.weight_norm)

    def target_logit(self, cosine: mx.nd.NDArray) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
        """Target logit divided by s, and its derivative by the cosine.

        Args:
            cosine: any shape; values a rounding beyond -1 and 1 are taken as -1 and 1.

        Returns:
            Two arrays of that shape.
        """
        if self.m1 == 1 and self.m2 == 0:
            return cosine - self.m3, mx.nd.ones_like(cosine)
        return _MarginCosine(self.m1, self.m2)(cosine) - self.m3, margin_slope(cosine, self.m1, self.m2)


class _MarginCosine(mx.autograd.Function):
    """psi(m1 * theta + m2) of a cosine, with the derivative of :func:`margin_slope` when recorded.

    Recording arccos itself would give infinity at -1 and 1, and an infinity times zero is not a number.
    """

    def __init__(self, m1: float, m2: float):
        super().__init__()
        self.m1, self.m2 = m1, m2

    def forward(self, cosine):
        self.save_for_backward(cosine)
        angle, turns = _angle(cosine, self.m1, self.m2)
        sign = 1 - 2 * (turns % 2)
        return sign * mx.nd.cos(angle) - 2 * turns

    def backward(self, d_output):
        (cosine,) = self.saved_tensors
        return d_output * margin_slope(cosine, self.m1, self.m2)


def margin_slope(cosine: mx.nd.NDArray, m1: float, m2: float) -> mx.nd.NDArray:
    """Derivative of psi(m1 * theta + m2) by cos(theta): m1 * |sin(m1 * theta + m2)| / sin(theta), finite."""
    angle, _ = _angle(cosine, m1, m2)
    sine = mx.nd.sqrt(mx.nd.maximum(1 - mx.nd.square(cosine), MIN_SINE**2))
    return m1 * mx.nd.abs(mx.nd.sin(angle)) / sine


def write_targets(logits: mx.nd.NDArray, column: mx.nd.NDArray, value: mx.nd.NDArray) -> None:
    """Writes ``value`` (G,) at the target of each row of ``logits`` (G, S), where the target is here."""
    safe = mx.nd.maximum(column, 0)
    # Rows without a target get back what stands in their first column, so the shapes never depend on the batch.
    value = mx.nd.where(column >= 0, value, mx.nd.pick(logits, safe, axis=1))
    logits[mx.nd.arange(logits.shape[0], ctx=logits.context, dtype=column.dtype), safe] = value


def _angle(cosine, m1, m2):
    angle = m1 * mx.nd.arccos(mx.nd.clip(cosine, -1.0, 1.0)) + m2
    return angle, mx.nd.floor(angle / math.pi)


def _normalize(rows):
    norm = mx.nd.sqrt(mx.nd.sum(mx.nd.square(rows), axis=1, keepdims=True) + NORM_EPSILON)
    return mx.nd.broadcast_div(rows, norm), norm


def _through_normalize(d_unit, unit, norm):
    """Gradient of a row from that of its normalised form: (g - (g . u) u) / |row|."""
    along = mx.nd.sum(d_unit * unit, axis=1, keepdims=True)
    return mx.nd.broadcast_div(d_unit - mx.nd.broadcast_mul(along, unit), norm)
