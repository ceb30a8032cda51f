"""The margin itself: its values, its derivative, and where both must stay finite."""

import math

import mxnet as mx
import numpy as np
import pytest

import oracle
from partial_fc_mxnet.memory_softmax import MarginLoss, margin_slope

FAMILIES = [(1.0, 0.5, 0.0), (1.0, 0.0, 0.4), (1.35, 0.0, 0.0), (0.9, 0.4, 0.15), (3.0, 1.0, 0.0)]


@pytest.mark.parametrize("margins", FAMILIES)
def test_target_logit_and_its_derivative(margins):
    m1, m2, m3 = margins
    cosine = np.linspace(-0.99, 0.99, 67)
    value, slope = MarginLoss(margins).target_logit(mx.nd.array(cosine))

    def exact(c):
        return oracle.psi(m1 * math.acos(c) + m2) - m3

    np.testing.assert_allclose(value.asnumpy(), [exact(c) for c in cosine], atol=3e-6)
    derivative = [(exact(c + 1e-6) - exact(c - 1e-6)) / 2e-6 for c in cosine]
    np.testing.assert_allclose(slope.asnumpy(), derivative, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("margins", FAMILIES)
def test_falls_all_the_way_from_0_to_pi(margins):
    value, slope = MarginLoss(margins).target_logit(mx.nd.array(np.cos(np.linspace(0, math.pi, 2001))))
    assert (np.diff(value.asnumpy()) <= 1e-6).all()
    assert (slope.asnumpy() >= 0).all()


def test_finite_at_and_beyond_the_ends():
    cosine = mx.nd.array([1.0, -1.0, 1.0000001, -1.0000001, 1.001])
    for margins in FAMILIES:
        value, slope = MarginLoss(margins).target_logit(cosine)
        assert np.isfinite(value.asnumpy()).all()
        assert np.isfinite(slope.asnumpy()).all()
    assert np.isfinite(margin_slope(cosine, 1.0, 0.5).asnumpy()).all()


@pytest.mark.parametrize("margins", FAMILIES)
def test_the_written_out_gradients_equal_autograds(margins):
    rng = np.random.default_rng(0)
    data, weight = (mx.nd.array(rng.standard_normal((rows, 16))) for rows in (12, 40))
    column = mx.nd.array(np.where(rng.random(12) < 0.3, -1, rng.integers(0, 40, 12)), dtype="int32")
    loss = MarginLoss(margins, 32, 16)
    data.attach_grad()
    weight.attach_grad()
    with mx.autograd.record():
        textbook, one_hot = loss.forward(data, weight, column, 40)
    head = mx.nd.array(rng.standard_normal((12, 40)))
    textbook.backward(head)
    logits, forward = loss.logits(data, weight, column)
    np.testing.assert_allclose(logits.asnumpy(), textbook.asnumpy(), rtol=1e-4, atol=1e-3)
    assert (one_hot.asnumpy().sum(axis=1) == (column.asnumpy() >= 0)).all()
    d_data, d_weight = loss.gradients(head.copy(), forward)
    for written, recorded in ((d_data, data.grad), (d_weight, weight.grad)):
        scale = np.abs(recorded.asnumpy()).max()
        np.testing.assert_allclose(written.asnumpy() / scale, recorded.asnumpy() / scale, atol=1e-5)
