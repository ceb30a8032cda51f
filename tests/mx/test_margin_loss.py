"""The textbook form under autograd: logits, gradients, and finite gradients where feature and center coincide."""

import mxnet as mx
import numpy as np
import pytest

from partial_fc.layer.margins import target_logit
from partial_fc_mxnet import MarginLoss

FAMILIES = [(1.0, 0.5, 0.0), (1.0, 0.0, 0.4), (1.35, 0.0, 0.0), (0.9, 0.4, 0.15), (3.0, 1.0, 0.0)]


def record(margins, data, weight, column):
    """Logits, one-hot targets and the gradients of the sum of the target logits."""
    loss = MarginLoss(margins, 32, data.shape[1])
    data.attach_grad()
    weight.attach_grad()
    with mx.autograd.record():
        logits, one_hot = loss.forward(data, weight, column, weight.shape[0])
        (logits * one_hot).sum().backward()
    return logits.asnumpy(), one_hot.asnumpy(), data.grad.asnumpy(), weight.grad.asnumpy()


@pytest.mark.parametrize("margins", FAMILIES)
def test_margin_changes_only_the_target_logit(margins):
    rng = np.random.default_rng(0)
    data, weight = (rng.standard_normal((rows, 16)) for rows in (12, 40))
    column = np.where(rng.random(12) < 0.3, -1, rng.integers(0, 40, 12))
    logits, one_hot, d_data, _ = record(margins, mx.nd.array(data), mx.nd.array(weight), mx.nd.array(column))
    units = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (data, weight)]
    cosine = units[0] @ units[1].T
    expected, local = cosine.copy(), np.flatnonzero(column >= 0)
    expected[local, column[local]], slope = target_logit(cosine[local, column[local]], margins)
    np.testing.assert_allclose(logits, 32 * expected, rtol=1e-4, atol=1e-3)
    assert (one_hot.sum(axis=1) == (column >= 0)).all()
    # d cosine / d feature = (center - cosine * feature) / |feature|, with unit rows center and feature.
    across = units[1][column[local]] - cosine[local, column[local], None] * units[0][local]
    d_expected = 32 * slope[:, None] * across / np.linalg.norm(data[local], axis=1, keepdims=True)
    np.testing.assert_allclose(d_data[local], d_expected, rtol=1e-3, atol=1e-3)
    assert not d_data[column < 0].any()


@pytest.mark.parametrize("margins", FAMILIES)
def test_finite_where_feature_and_center_coincide(margins):
    rows = mx.nd.array(np.random.default_rng(1).standard_normal((4, 16)))
    for sign in (1, -1):
        for result in record(margins, sign * rows, rows.copy(), mx.nd.arange(4)):
            assert np.isfinite(result).all()


@pytest.mark.parametrize("threshold", [-0.1, 1.0])
def test_thresholds_that_are_no_cosines_are_refused(threshold):
    with pytest.raises(ValueError, match=f"interclass_filtering_threshold={threshold}: expected a cosine from 0"):
        MarginLoss(interclass_filtering_threshold=threshold)
