"""Thinning keeps every extreme, gap and end; means against slow loops."""

import numpy as np
import pytest

from partial_fc.training.report.svg import BUCKETS, MAX_POINTS, means, thin


def noise(count, seed=3):
    """Returns a noisy curve with unequal steps."""
    rng = np.random.default_rng(seed)
    return np.cumsum(rng.uniform(0.1, 5, count)), rng.normal(size=count)


def bucket_of(value, x):
    return min(int((value - x[0]) / (x[-1] - x[0]) * BUCKETS), BUCKETS - 1)


def slow_buckets(x):
    """Returns the indices in each hundredth of the width."""
    buckets = [[] for _ in range(BUCKETS)]
    for index, value in enumerate(x):
        buckets[bucket_of(value, x)].append(index)
    return buckets


@pytest.mark.parametrize("count", [0, 1, 2, MAX_POINTS])
def test_few_points_are_kept(count):
    x, y = noise(count)
    assert thin(x, y).tolist() == list(range(count))


@pytest.mark.parametrize("count", [MAX_POINTS + 1, 5000, 30011])
def test_extremes_and_ends_are_kept(count):
    x, y = noise(count)
    kept = thin(x, y)
    assert len(kept) <= MAX_POINTS and (np.diff(kept) > 0).all()
    left = set(kept.tolist())
    for indices in filter(None, slow_buckets(x)):
        assert {indices[0], indices[-1]} <= left
        assert {min(indices, key=lambda i: y[i]), max(indices, key=lambda i: y[i])} <= left


def test_a_single_spike_survives():
    x, y = np.arange(30000.0), np.zeros(30000)
    y[17321], y[17322] = 9, -4
    assert {17321, 17322} <= set(thin(x, y).tolist())


def test_a_gap_survives():
    x, y = noise(5000)
    y[2000:2600] = np.nan
    y[4000] = np.inf
    kept = thin(x, y).tolist()
    assert len(kept) <= MAX_POINTS
    assert 1999 in kept and 2600 in kept and 4000 in kept
    # Every hundredth that is entirely in the gap keeps a point of it.
    for indices in slow_buckets(x):
        if indices and all(2000 <= index < 2600 for index in indices):
            assert indices[0] in kept


def test_equal_x_cause_no_division_by_zero():
    kept = thin(np.ones(2000), np.arange(2000.0))
    assert kept.tolist() == [0, 1999]


@pytest.mark.parametrize("count", [1, 40, 5000])
def test_means_of_the_hundredths(count):
    x, y = noise(count)
    y[count // 2 :: 7] = np.nan
    finite = np.flatnonzero(np.isfinite(y))
    x_mean, y_mean = means(x, y)
    if not len(finite):
        assert len(x_mean) == len(y_mean) == 0
        return
    x, y = x[finite], y[finite]
    parts = [part for part in (slow_buckets(x) if len(x) > 1 else [[0]]) if part]
    np.testing.assert_allclose(x_mean, [sum(x[i] for i in part) / len(part) for part in parts])
    np.testing.assert_allclose(y_mean, [sum(y[i] for i in part) / len(part) for part in parts], atol=1e-12)
