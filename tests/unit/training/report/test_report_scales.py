"""Axes: round, ordered ticks that cover the values, for all ranges of values."""

import math

import numpy as np
import pytest

from partial_fc.training.report.scales import decades, linear


def texts(scale):
    return [tick.text for tick in scale.ticks]


@pytest.mark.parametrize(
    "values, bounds, expected",
    [
        ([0, 2000], (0, 2000), ["0", "500", "1,000", "1,500", "2,000"]),
        ([0, 600000], (0, 600000), ["0", "200,000", "400,000", "600,000"]),
        ([0, 1999], (0, 1999), ["0", "500", "1,000", "1,500"]),
        ([0, 49.2], (0, math.inf), ["0", "20", "40", "60"]),
        ([99.1, 99.83], (0, 100), ["99.0", "99.2", "99.4", "99.6", "99.8", "100.0"]),
        ([61.2, 98.5], (0, 100), ["60", "70", "80", "90", "100"]),
        ([-0.3, 0.7], (-math.inf, math.inf), ["-0.50", "-0.25", "0.00", "0.25", "0.50", "0.75"]),
        ([2e-9, 9e-9], (0, math.inf), ["2e-09", "4e-09", "6e-09", "8e-09", "1e-08"]),
        ([0, 3.1e9], (0, math.inf), ["0", "1e+09", "2e+09", "3e+09", "4e+09"]),
    ],
)
def test_ticks_are_round(values, bounds, expected):
    assert texts(linear(values, *bounds)) == expected


@pytest.mark.parametrize(
    "value, bounds", [(100.0, (0, 100)), (0.0, (0, 1)), (7.25, (-math.inf, math.inf)), (1e-30, ())]
)
def test_a_flat_curve_has_an_axis(value, bounds):
    scale = linear([value, value], *bounds)
    assert scale.low <= value <= scale.high and scale.low < scale.high
    assert len(scale.ticks) >= 2


def test_any_range_is_covered_by_a_few_ticks():
    rng = np.random.default_rng(11)
    for _ in range(2000):
        low = rng.normal() * 10.0 ** rng.integers(-12, 13)
        values = [low, low + 10.0 ** rng.uniform(-12, 13)]
        scale = linear(values)
        steps = np.diff([tick.value for tick in scale.ticks])
        width = scale.high - scale.low
        assert scale.low <= values[0] + 1e-9 * width and values[1] <= scale.high + 1e-9 * width
        assert 3 <= len(scale.ticks) <= 7
        np.testing.assert_allclose(steps, steps[0], rtol=1e-3)


def test_places_are_shares_of_the_axis():
    scale = linear([0, 200], 0, 200)
    np.testing.assert_allclose(scale.place(np.array([0, 50, 200, np.nan])), [0, 0.25, 1, np.nan])


def test_decades():
    scale = decades(1e-5)
    assert texts(scale) == ["1e-5", "0.0001", "0.001", "0.01", "0.1", "1"]
    np.testing.assert_allclose(scale.place(np.array([0, 1e-5, 1e-3, 1])), [0, 0, 0.4, 1], atol=1e-12)
    assert texts(decades(0.00017)) == ["0.001", "0.01", "0.1", "1"]
    assert texts(decades(0.5)) == ["1"]
