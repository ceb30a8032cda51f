"""The textbook form under autograd is finite where feature and center coincide; its oracle is in tests/parallel/mx."""

import mxnet as mx
import numpy as np
import pytest

from partial_fc_mxnet import MarginLoss


@pytest.mark.parametrize("margins", [(1.0, 0.5, 0.0), (1.0, 0.0, 0.4), (1.35, 0.0, 0.0), (3.0, 1.0, 0.0)])
@pytest.mark.parametrize("sign", [1, -1])
def test_finite_where_feature_and_center_coincide(margins, sign):
    weight = mx.nd.array(np.random.default_rng(1).standard_normal((4, 16)))
    data = sign * weight
    for array in (data, weight):
        array.attach_grad()
    with mx.autograd.record():
        logits, one_hot = MarginLoss(margins, 32, 16).forward(data, weight, mx.nd.arange(4), 4)
        (logits * one_hot).sum().backward()
    for result in (logits, data.grad, weight.grad):
        assert np.isfinite(result.asnumpy()).all()
