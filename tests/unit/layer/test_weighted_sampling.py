import itertools

import numpy as np
import pytest

from partial_fc.layer.weighted_sampling import WeightedSampler, checked_weights, inclusion_probabilities

WEIGHTS = np.array([1.0, 5.0, 2.0, 40.0, 3.0, 2.5])
L = len(WEIGHTS)


@pytest.mark.parametrize(
    "weights, count, expected",
    [
        ([1, 1, 1, 1], 2, [0.5] * 4),
        ([1, 2, 3], 1, [1 / 6, 2 / 6, 3 / 6]),
        ([1, 1, 100], 2, [0.5, 0.5, 1]),
        ([1, 9, 100], 2, [0.1, 0.9, 1]),
        ([1, 20, 100], 2.5, [0.5, 1, 1]),
        ([3, 1, 2], 3, [1, 1, 1]),
        ([3, 1, 2], 0, [0, 0, 0]),
        ([1e308, 1e308, 5e307], 1, [0.4, 0.4, 0.2]),
        ([5e-324] * 4, 2, [0.5] * 4),
    ],
)
def test_inclusion_probabilities(weights, count, expected):
    np.testing.assert_allclose(inclusion_probabilities(np.array(weights, float), count), expected, rtol=1e-12)


@pytest.mark.parametrize("labels", [[], [1], [3, 1], [0, 5, 0, 99]])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_expected_sum_of_the_negatives_is_exact(labels, count):
    """Over all samples, each with its probability."""
    exponentials = np.exp(np.random.default_rng(0).normal(size=L))
    expected, total = 0.0, 0.0
    for drawn in itertools.product([False, True], repeat=L):
        sampler = WeightedSampler(WEIGHTS, count, L, 0, 10, 0)
        probability = np.prod(np.where(drawn, sampler._probabilities, 1 - sampler._probabilities))
        if probability == 0:
            continue
        sampler._draw = lambda drawn=drawn: np.flatnonzero(drawn)
        index, _ = sampler(np.array(labels, int) + 10)
        positive = np.isin(index, labels)
        assert set(index) == {*np.flatnonzero(drawn), *(label for label in labels if label < L)}
        weighted = exponentials[index] * np.exp(sampler.log_weights.astype(float)[index])
        expected += probability * weighted[~positive].sum()
        total += probability
    assert total == pytest.approx(1)
    assert expected == pytest.approx(np.delete(exponentials, [label for label in labels if label < L]).sum(), rel=1e-6)


def test_the_shares_of_draws_are_the_probabilities():
    sampler = WeightedSampler(WEIGHTS, 2, L, 0, 0, seed=3)
    draws = np.zeros(L)
    for _ in range(4000):
        draws[sampler(np.empty(0, int))[0]] += 1
    np.testing.assert_allclose(draws / 4000, sampler._probabilities, atol=0.03)


def test_a_restored_sampler_repeats_its_draws():
    first, second = (WeightedSampler(WEIGHTS, 3, L, 0, 0, seed) for seed in (1, 2))
    first.begin_draw()
    second.restore(first.state())
    for _ in range(5):
        for one, other in zip(first(np.array([2, 4])), second(np.array([2, 4]))):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("count, expected", [(0, [1, 4]), (L, list(range(L)))])
def test_without_negatives_and_with_all_classes_nothing_is_drawn(count, expected):
    sampler = WeightedSampler(WEIGHTS, 2, L, 0, 0, 0)
    sampler.resize(count)
    assert sampler(np.array([4, 1, 4]))[0].tolist() == expected


@pytest.mark.parametrize(
    "weights, message",
    [
        ([1j, 1], r"complex128 of the shape \(2,\)"),
        (["1", "2"], "<U1"),
        (np.ones(3), r"the shape \(3,\), expected \(2,\)"),
        ([1.0, 0.0], "class 1 is 0.0"),
        ([np.nan, 1.0], "class 0 is nan"),
    ],
)
def test_wrong_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        checked_weights(weights, 2)
