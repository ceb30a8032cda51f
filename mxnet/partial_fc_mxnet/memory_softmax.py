"""The margin softmax over one rank's class centers, in its textbook form; layer/tiled_softmax.py has the fast form.

Shapes: G global batch, S sampled classes of this rank, E embedding.
"""

import mxnet as mx
import numpy as np

from partial_fc.layer.margins import target_logit
from partial_fc.utils.options import checked

LOWEST = float(np.finfo(np.float32).min)  # logit of a negative that is left out: its exponential is 0


class MarginLoss:
    """Combined-margin softmax loss on cosines, with target logit s (cos(m1 theta + m2) - m3).

    See partial_fc/layer/margins.py for the angles beyond pi.

    Args:
        margins: (m1, m2, m3) of the target logit.
        loss_s: the scale s.
        embedding_size: E.
        interclass_filtering_threshold: leaves out a row's negatives with a higher cosine, which may be the same class
            under another label; 0 keeps all negatives.

    Raises:
        ValueError: An argument is out of bounds, see partial_fc/utils/options.py.
    """

    def __init__(
        self,
        margins=(1.0, 0.5, 0.0),
        loss_s: float = 64,
        embedding_size: int = 512,
        interclass_filtering_threshold: float = 0.0,
    ):
        m1, m2, m3 = margins
        threshold = interclass_filtering_threshold
        m1, m2, m3, self.loss_s, self.interclass_filtering_threshold = checked(
            "combined", m1=m1, m2=m2, m3=m3, s=loss_s, interclass_filtering_threshold=threshold
        )
        self.margins = (m1, m2, m3)
        self.embedding_size = embedding_size

    def forward(
        self, data: mx.nd.NDArray, weight: mx.nd.NDArray, mapping_label: mx.nd.NDArray, depth: int
    ) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
        """Computes the logits in the textbook form, to be recorded by autograd; tests and benchmarks compare with it.

        Args:
            data: (G, E) float32 features.
            weight: (S, E) float32 centers.
            mapping_label: (G,) column of each row's target, -1 if this rank does not hold it.
            depth: S.

        Returns:
            (logits (G, S), one-hot targets (G, S) with rows of zeros for -1).
        """
        one_hot = mx.nd.one_hot(mapping_label, depth)
        data, weight = mx.nd.L2Normalization(data), mx.nd.L2Normalization(weight)
        cosine = mx.nd.dot(data, weight, transpose_b=True)
        target = mx.nd.sum(cosine * one_hot, axis=1, keepdims=True)
        margin_target = _Margin(self.margins)(target)
        logits = self.loss_s * (cosine + one_hot * (margin_target - target))
        if self.interclass_filtering_threshold:
            left_out = (cosine > self.interclass_filtering_threshold) * (1 - one_hot)
            logits = mx.nd.where(left_out, mx.nd.full(logits.shape, LOWEST, ctx=logits.context), logits)
        return logits, one_hot


class _Margin(mx.autograd.Function):
    """Target logit / s of a cosine, with its exact derivative.

    The derivative of a recorded arccos would be infinite at -1 and 1, and infinity times zero is NaN.
    """

    def __init__(self, margins):
        super().__init__()
        self.margins = margins

    def forward(self, cosine):
        value, slope = target_logit(cosine.asnumpy().astype("float64"), self.margins)
        self.save_for_backward(_like(cosine, slope))
        return _like(cosine, value)

    def backward(self, d_output):
        (slope,) = self.saved_tensors
        return d_output * slope


def _like(array, values):
    return mx.nd.array(values, ctx=array.context, dtype=array.dtype)
