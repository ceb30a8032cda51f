"""The order that is computed entry by entry: a permutation, and as random as a shuffled array."""

import itertools
from collections import Counter

import numpy as np
import pytest

from partial_fc.data.permutation import Permutation


@pytest.mark.parametrize("num", [1, 2, 3, 4, 5, 15, 16, 17, 99, 1000, 4095, 4096, 4097, 24000])
def test_every_number_comes_once(num):
    for key in (0, 1, 2**63):
        entries = Permutation(num, np.uint64(key))(np.arange(num))
        assert entries.dtype == np.int64 and np.bincount(entries, minlength=num).tolist() == [1] * num


def test_parts_are_those_of_the_whole_and_huge_sets_cost_nothing():
    num = 17_091_657
    order = Permutation(num, np.uint64(5))
    part = order(np.arange(num - 4096, num))
    assert len(np.unique(part)) == 4096 and part.min() >= 0 and part.max() < num
    assert (part[100:164] == order(np.arange(num - 3996, num - 3932))).all()
    # Spread over the whole set: chi-square over ten bins has 9 degrees of freedom, 40 is beyond one in 10^5.
    counts = np.histogram(part, 10, (0, num))[0]
    assert ((counts - 409.6) ** 2 / 409.6).sum() < 40
    with pytest.raises(ValueError, match="no order of 0 things"):
        Permutation(0, np.uint64(5))


def test_all_orders_of_four_things_are_equally_likely():
    """Chi-square with 23 degrees of freedom: 62 is beyond one in 10^5. Odd and even orders must both come."""
    runs = 6000
    counts = Counter(tuple(Permutation(4, np.uint64(key))(np.arange(4)).tolist()) for key in range(runs))
    expected = runs / 24
    assert sum((counts[order] - expected) ** 2 / expected for order in itertools.permutations(range(4))) < 62


def test_places_and_neighbours_are_independent():
    """Where 0 lands, and what follows it, over many keys; each chi-square with 49 degrees of freedom, 103 at 10^-5."""
    orders = np.array([Permutation(50, np.uint64(key))(np.arange(50)) for key in range(3000)])
    for column in (0, 1, 25, 49):
        counts = np.bincount(orders[:, column], minlength=50)
        assert ((counts - 60) ** 2 / 60).sum() < 103
    steps = np.bincount((orders[:, 1] - orders[:, 0]) % 50, minlength=50)[1:]
    assert ((steps - 3000 / 49) ** 2 / (3000 / 49)).sum() < 103
    first, second = orders[:-1, 10], orders[1:, 10]  # keys that follow one another
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(3000)
