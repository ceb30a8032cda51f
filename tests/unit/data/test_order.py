"""The order of images and the random numbers of augmentation depend on seed, epoch and position only."""

import itertools
from collections import Counter

import numpy as np
import pytest

from partial_fc.data.order import Permutation, epoch_entries, uniform_draws


def test_an_epochs_order():
    indices = np.arange(1000)
    first = epoch_entries(1000, True, 3, 0, indices)
    assert first.dtype == np.int64 and sorted(first.tolist()) == indices.tolist()
    assert (first[200:300] == epoch_entries(1000, True, 3, 0, indices[200:300])).all()
    for seed, epoch in ((3, 1), (4, 0), (0, 3)):
        assert np.mean(first == epoch_entries(1000, True, seed, epoch, indices)) < 0.02
    assert epoch_entries(5, False, 3, 1, np.arange(2, 5)).tolist() == [2, 3, 4]


def test_draws_depend_on_seed_epoch_image_and_number_only():
    positions = np.array([5, 16_777_217, 0, 2**40])
    draws = uniform_draws(7, 2, positions, 4)
    assert draws.shape == (4, 4) and len(np.unique(draws)) == 16
    assert (uniform_draws(7, 2, positions[::-1], 4) == draws[::-1]).all()
    assert (uniform_draws(7, 2, positions, 2) == draws[:, :2]).all()
    others = [uniform_draws(8, 2, positions, 4), uniform_draws(7, 3, positions, 4), uniform_draws(2, 7, positions, 4)]
    assert all((other != draws).all() for other in others)


def test_draws_are_uniform_and_independent():
    """Bounds are five standard deviations of the mean, the variance's and the correlations' estimates."""
    count = 20000
    table = np.concatenate(
        [uniform_draws(1, epoch, np.arange(count), 3).T for epoch in (0, 1)]
        + [uniform_draws(2, 0, np.arange(count), 1).T]
    )
    assert table.min() >= 0 and table.max() < 1
    assert np.abs(table.mean(axis=1) - 0.5).max() < 5 * np.sqrt(1 / 12 / count)
    assert np.abs(np.corrcoef(table) - np.eye(len(table))).max() < 5 / np.sqrt(count)
    neighbors = [np.corrcoef(row[:-1], row[1:])[0, 1] for row in table]
    assert np.abs(neighbors).max() < 5 / np.sqrt(count)


@pytest.mark.parametrize("num", [1, 2, 3, 4, 5, 15, 16, 17, 99, 1000, 4095, 4096, 4097, 24000])
def test_a_permutation_has_every_number_once(num):
    for key in (0, 1, 2**63):
        entries = Permutation(num, np.uint64(key))(np.arange(num))
        assert entries.dtype == np.int64 and np.bincount(entries, minlength=num).tolist() == [1] * num


def test_a_part_of_a_huge_permutation_is_computed_alone():
    num = 17_091_657
    order = Permutation(num, np.uint64(5))
    part = order(np.arange(num - 4096, num))
    assert len(np.unique(part)) == 4096 and part.min() >= 0 and part.max() < num
    assert (part[100:164] == order(np.arange(num - 3996, num - 3932))).all()
    # Uniform over the whole set: chi-square over ten bins has 9 degrees of freedom, 40 is beyond one in 10^5.
    counts = np.histogram(part, 10, (0, num))[0]
    assert ((counts - 409.6) ** 2 / 409.6).sum() < 40


def test_all_permutations_of_four_numbers_are_equally_likely():
    """Chi-square with 23 degrees of freedom: 62 is beyond one in 10^5. Odd and even permutations must both occur."""
    runs = 6000
    counts = Counter(tuple(Permutation(4, np.uint64(key))(np.arange(4)).tolist()) for key in range(runs))
    expected = runs / 24
    assert sum((counts[order] - expected) ** 2 / expected for order in itertools.permutations(range(4))) < 62
