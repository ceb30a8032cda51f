"""CombinedMarginLoss, ArcFace and CosFace as functions of cosines, as users of arcface_torch call them."""

import math

import numpy as np
import pytest
import torch

import oracle
from partial_fc_torch import ArcFace, CombinedMarginLoss, CosFace

COSINES = np.random.default_rng(0).uniform(-1, 1, (4, 6))
LABELS = np.array([2, -1, 5, 0])


@pytest.mark.parametrize(
    "loss, margins, scale",
    [
        (ArcFace(), (1, 0.5, 0), 64),
        (ArcFace(s=30, margin=0.3), (1, 0.3, 0), 30),
        (CosFace(), (1, 0, 0.4), 64),
        (CosFace(s=30, m=0.2), (1, 0, 0.2), 30),
        (CombinedMarginLoss(64, 1.0, 0.3, 0.2, 0), (1, 0.3, 0.2), 64),
        (CombinedMarginLoss(16, 2.0, 1.0, 0.1), (2, 1, 0.1), 16),
    ],
)
@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_logits_have_the_margin_at_the_targets_alone(loss, margins, scale, shape):
    cosines = torch.from_numpy(COSINES)
    logits = loss(cosines, torch.from_numpy(LABELS).reshape(shape))
    expected = scale * COSINES
    m1, m2, m3 = margins
    for row, label in enumerate(LABELS):
        if label >= 0:
            expected[row, label] = scale * (oracle.psi(m1 * math.acos(COSINES[row, label]) + m2) - m3)
    np.testing.assert_allclose(logits, expected, rtol=1e-12)
    np.testing.assert_array_equal(cosines, COSINES)


@pytest.mark.parametrize("loss", [ArcFace(4.0), CosFace(4.0), CombinedMarginLoss(4.0, 0.9, 0.4, 0.15)])
def test_gradcheck(loss):
    cosines = torch.from_numpy(COSINES).requires_grad_()
    assert torch.autograd.gradcheck(lambda logits: loss(logits, torch.from_numpy(LABELS)), (cosines,))


def test_straight_through_has_the_slope_one():
    cosines = torch.from_numpy(COSINES).requires_grad_()
    ArcFace(4.0, straight_through=True)(cosines, torch.from_numpy(LABELS)).sum().backward()
    np.testing.assert_array_equal(cosines.grad, np.full_like(COSINES, 4.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gradients_are_finite_where_feature_and_center_coincide(dtype):
    cosines = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=dtype, requires_grad=True)
    logits = ArcFace()(cosines, torch.tensor([0, 0]))
    logits.float().sum().backward()
    assert logits.dtype == dtype and torch.isfinite(cosines.grad).all()


def test_negatives_above_the_threshold_are_left_out():
    cosines = torch.tensor([[0.9, 0.3, 0.6], [0.7, 0.2, 0.1]], dtype=torch.float64, requires_grad=True)
    logits = CombinedMarginLoss(4.0, 1.0, 0.0, 0.4, 0.5)(cosines, torch.tensor([0, -1]))
    torch.nn.functional.cross_entropy(logits[:1], torch.tensor([0])).backward()
    lowest = torch.finfo(torch.float64).min
    torch.testing.assert_close(logits, torch.tensor([[2.0, 1.2, lowest], [lowest, 0.8, 0.4]], dtype=torch.float64))
    assert cosines.grad[0, 0] == -cosines.grad[0, 1] != 0 and cosines.grad[0, 2] == 0


@pytest.mark.parametrize("threshold", [-0.1, 1.0])
def test_thresholds_that_are_no_cosines_are_refused(threshold):
    with pytest.raises(ValueError, match=f"interclass_filtering_threshold={threshold}: expected a cosine from 0"):
        CombinedMarginLoss(64, 1.0, 0.5, 0.0, threshold)
