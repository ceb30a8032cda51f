"""The target logit with margin: its value and derivative, also at the ends."""

import math

import numpy as np
import pytest

import oracle
from partial_fc.layer.margins import target_logit

FAMILIES = [(1.0, 0.5, 0.0), (1.0, 0.0, 0.4), (1.35, 0.0, 0.0), (0.9, 0.4, 0.15), (3.0, 1.0, 0.0)]


@pytest.mark.parametrize("margins", FAMILIES)
def test_target_logit_and_its_derivative(margins):
    m1, m2, m3 = margins
    cosine = np.linspace(-0.99, 0.99, 67)
    value, slope = target_logit(cosine, margins)

    def exact(c):
        return oracle.psi(m1 * math.acos(c) + m2) - m3

    np.testing.assert_allclose(value, [exact(c) for c in cosine], atol=1e-12)
    derivative = [(exact(c + 1e-6) - exact(c - 1e-6)) / 2e-6 for c in cosine]
    # Central differences over 2e-6 of a function of order 1 with a rounding error of 1e-16.
    np.testing.assert_allclose(slope, derivative, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("margins", FAMILIES)
def test_the_value_decreases_from_0_to_pi_and_is_finite_beyond(margins):
    value, slope = target_logit(np.cos(np.linspace(0, math.pi, 2001)), margins)
    assert (np.diff(value) <= 1e-12).all() and (slope >= 0).all()
    for result in target_logit(np.array([1.0, -1.0, 1.0000001, -1.0000001, 1.001]), margins):
        assert np.isfinite(result).all()
