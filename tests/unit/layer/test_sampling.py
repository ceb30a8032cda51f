import copy
import itertools
import math
import threading
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from partial_fc.layer import sampling
from partial_fc.layer.sampling import WeightIndexSampler, label_columns, log_weights


def chi_square_limit(freedom):
    """The chi-square statistic that a correct sampler exceeds for one seed in 10,000. The seeds here are fixed.

    Wilson and Hilferty's approximation with the normal quantile 3.719. It exceeds the exact value by at most 2.5 % if
    there are 5 or more degrees of freedom.
    """
    part = 2 / (9 * freedom)
    return freedom * (1 - part + 3.719 * math.sqrt(part)) ** 3


def negatives_of(sampler, positive):
    """The negatives of a sample for labels that include repeated labels and labels of other ranks."""
    labels = np.random.default_rng(0).permutation(np.concatenate([positive, positive[::2], [-1, sampler.num_local]]))
    index, _ = sampler(labels + sampler.class_start)
    assert index.dtype == np.int64 and len(index) == sampler.num_sample
    assert index.tolist() == sorted({*index.tolist(), *positive.tolist()}), "sorted, unique, with all positives"
    return np.setdiff1d(index, positive)


@pytest.mark.parametrize("num_sample", [0, 20, 49, 50])
def test_a_sample_contains_all_local_positives_and_no_duplicates(num_sample):
    sampler = WeightIndexSampler(num_sample, num_local=50, rank=1, class_start=100)
    for step in range(50):
        labels = np.random.default_rng(step).integers(0, 200, 64)
        index, unique = sampler(labels)
        assert unique.tolist() == sorted(set(labels.tolist()))
        positives = {label - 100 for label in labels.tolist() if 100 <= label < 150}
        assert len(index) == max(num_sample, len(positives)) and positives <= set(index.tolist()) <= set(range(50))
        assert index.tolist() == sorted(set(index.tolist()))
    assert WeightIndexSampler(0, 0, rank=2)(labels)[0].tolist() == []


@pytest.mark.parametrize("positive", [[], [0, 4, 8], [3, 4, 5], [0, 1, 2, 3, 4, 5, 6, 7]])
def test_number_of_negatives_from_none_to_all(positive):
    positive = np.array(positive, np.int64)
    for num_sample in range(max(len(positive), 1), 9):
        sampler = WeightIndexSampler(num_sample, 9, rank=2)
        for _ in range(20):
            drawn = negatives_of(sampler, positive)
            assert len(drawn) == num_sample - len(positive) and set(drawn.tolist()) <= set(range(9))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_all_subsets_of_negatives_are_equally_likely(count):
    positive = np.array([0, 3, 4, 9])
    sampler = WeightIndexSampler(len(positive) + count, 10, rank=0, seed=count)
    subsets = list(itertools.combinations([1, 2, 5, 6, 7, 8], count))
    expected = 150
    seen = Counter(tuple(negatives_of(sampler, positive).tolist()) for _ in range(expected * len(subsets)))
    assert set(seen) <= set(subsets)
    statistic = sum((seen[subset] - expected) ** 2 / expected for subset in subsets)
    assert statistic < chi_square_limit(len(subsets) - 1)


@pytest.mark.parametrize(
    "num_local, count, draws", [(1000, 50, 2000), (1000, 485, 1000), (1000, 900, 1000), (40000, 15000, 200)]
)
def test_many_negatives_are_equally_likely(num_local, count, draws):
    positive = np.sort(np.random.default_rng(count).choice(num_local, 30, replace=False))
    sampler = WeightIndexSampler(len(positive) + count, num_local, rank=0, seed=count)
    seen = np.zeros(num_local)
    for _ in range(draws):
        seen[negatives_of(sampler, positive)] += 1
    assert not seen[positive].any()
    pool = num_local - 30
    expected = draws * count / pool
    # Without replacement the counts vary less than independent ones would.
    variance = expected * (1 - count / pool) * pool / (pool - 1)
    assert ((np.delete(seen, positive) - expected) ** 2 / variance).sum() < chi_square_limit(pool - 1)


def test_more_classes_than_fit_in_32_bits():
    num_local, count = 2**40, 20000
    positive = np.array([0, 2**31, num_local - 1])
    drawn = negatives_of(WeightIndexSampler(count, num_local, rank=3), positive)
    assert drawn[0] > 0 and drawn[-1] < num_local - 1
    # 16 equal bins of the high and of the low bits. Draws of so few of the classes are practically independent.
    for bins in (drawn >> 36, drawn & 15):
        seen = np.bincount(bins, minlength=16)
        assert ((seen - len(drawn) / 16) ** 2 / (len(drawn) / 16)).sum() < chi_square_limit(15)


# An array of all classes would be detected at 19 times the sample, and one of the complement just above the sample.
@pytest.mark.parametrize("num_local", [10**9, 1_900_000, 200_000, 100_100])
def test_memory_is_proportional_to_the_sample(num_local):
    sampler = WeightIndexSampler(100_000, num_local, rank=0)
    labels = np.random.default_rng(1).integers(0, 2 * num_local, 1024)  # about half of them belong to the rank
    tracemalloc.start()
    try:
        sampler(labels)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Sampling half of the classes takes 1.4 draws per class; two such arrays and masks exist at once.
    assert peak < 4 * 8 * 100_000


def test_draws_are_reproducible_and_depend_on_rank_and_seed():
    def draw(rank, seed):
        return WeightIndexSampler(10, 1000, rank, class_start=0, seed=seed)(np.array([5]))[0].tolist()

    assert draw(0, 0) == draw(0, 0)
    assert draw(0, 0) != draw(1, 0)
    assert draw(0, 0) != draw(0, 1)


def test_a_step_drawn_ahead_changes_neither_samples_nor_state():
    labels = np.arange(0, 1000, 100)
    plain, ahead, resumed = [WeightIndexSampler(50, 1000, rank=0) for _ in range(3)]
    for _ in range(3):
        drawn = ahead.prefetch()
        resumed.prefetch()
        resumed.restore(ahead.state())
        expected = plain(labels)[0]
        assert len(np.setdiff1d(expected, drawn)) <= len(labels), "all but the positives were drawn ahead"
        assert ahead(labels)[0].tolist() == resumed(labels)[0].tolist() == expected.tolist()
    ahead.prefetch()
    ahead.restart(7)
    plain.restart(7)
    assert ahead(labels)[0].tolist() == plain(labels)[0].tolist()


def test_a_thread_that_is_still_drawing_affects_no_copy_and_no_restored_state(monkeypatch):
    labels, go_on, draw = np.arange(0, 1000, 100), threading.Event(), sampling.draw_classes
    plain, ahead = [WeightIndexSampler(50, 1000, rank=0) for _ in range(2)]
    expected = plain(labels)[0].tolist()
    monkeypatch.setattr(sampling, "draw_classes", lambda *arguments: go_on.wait(60) and draw(*arguments))
    start = ahead.state()
    ahead.begin_draw()
    copied = copy.deepcopy(ahead)
    threading.Timer(0.05, go_on.set).start()
    ahead.restore(start)
    assert ahead(labels)[0].tolist() == copied(labels)[0].tolist() == expected


def test_resize_discards_classes_that_were_drawn_ahead():
    labels = np.arange(0, 1000, 100)
    plain, ahead = [WeightIndexSampler(50, 1000, rank=0) for _ in range(2)]
    for num_sample in (50, 200, 0, 1000, 50):
        for sampler in (plain, ahead):
            sampler.resize(num_sample)
        index = plain(labels)[0]
        assert len(index) == max(num_sample, 10) and ahead(labels)[0].tolist() == index.tolist()
        ahead.prefetch()


@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_weights_make_the_sum_over_the_negatives_unbiased(count):
    """The mean over all samples equals the sum over all classes."""
    terms, positive = np.random.default_rng(count).exponential(size=10), [0, 3, 4, 9]
    estimates = []
    for negatives in itertools.combinations([1, 2, 5, 6, 7, 8], count):
        index = np.array(sorted([*positive, *negatives]))
        estimates.append((terms[index] * np.exp(log_weights(~np.isin(index, positive), 10))).sum())
    assert np.mean(estimates) == pytest.approx(terms.sum(), rel=1e-14)


@pytest.mark.parametrize("drawn", [[False, False], [True, False, True, True]])
def test_positives_and_complete_samples_have_no_weight(drawn):
    assert not log_weights(np.array(drawn), 4)[~np.array(drawn)].any()
    assert not log_weights(np.ones(4, bool), 4).any()


@pytest.mark.parametrize("start", [0, 16_777_210, 2**40])
def test_columns_of_labels(start):
    labels = np.array([0, 7, 8, 9, 3]) + start
    column = label_columns(labels, np.array([0, 2, 7, 8]), start)
    assert column.tolist() == [0, 2, 3, -1, -1]
