import numpy as np
import pytest

from partial_fc.sampling import WeightIndexSampler, draw_negatives, label_columns


def test_all_positives_of_this_rank_and_nothing_twice():
    sampler = WeightIndexSampler(num_sample=20, num_local=50, rank=1, class_start=100)
    for step in range(50):
        labels = np.random.default_rng(step).integers(0, 200, 64)
        index, unique = sampler(labels)
        assert unique.tolist() == sorted(set(labels.tolist()))
        assert len(index) == max(20, len({x for x in labels.tolist() if 100 <= x < 150}))
        assert index.tolist() == sorted(set(index.tolist()))
        assert {x - 100 for x in labels.tolist() if 100 <= x < 150} <= set(index.tolist())
        assert 0 <= index.min() and index.max() < 50


def test_every_class_without_a_draw():
    sampler = WeightIndexSampler(num_sample=5, num_local=5, rank=0)
    assert sampler(np.array([3, 3]))[0].tolist() == [0, 1, 2, 3, 4]


def test_a_rank_without_classes():
    assert WeightIndexSampler(num_sample=0, num_local=0, rank=2, class_start=2)(np.array([0, 1]))[0].tolist() == []


def test_negatives_are_uniform_and_never_positive():
    positive = np.array([0, 3, 4, 9])
    rng = np.random.default_rng(0)
    draws, count = 20000, 3
    seen = np.zeros(10)
    for _ in range(draws):
        drawn = draw_negatives(positive, 10, count, rng)
        assert len(set(drawn.tolist())) == count
        seen[drawn] += 1
    assert not seen[positive].any()
    negatives = np.delete(seen, positive)
    expected = draws * count / 6
    # Each count is binomial; drawn without replacement their chi-square is smaller than that of independent
    # draws, whose 99.99 % point with 5 degrees of freedom is 25.7.
    assert ((negatives - expected) ** 2 / expected).sum() < 25.7


def test_ranks_and_seeds_draw_differently_and_repeatably():
    def draw(rank, seed):
        return WeightIndexSampler(10, 1000, rank, class_start=0, seed=seed)(np.array([5]))[0].tolist()

    assert draw(0, 0) == draw(0, 0)
    assert draw(0, 0) != draw(1, 0)
    assert draw(0, 0) != draw(0, 1)


@pytest.mark.parametrize("start", [0, 16_777_210, 2**40])
def test_columns_of_labels(start):
    labels = np.array([0, 7, 8, 9, 3]) + start
    column = label_columns(labels, np.array([0, 2, 7, 8]), start)
    assert column.tolist() == [0, 2, 3, -1, -1]
    assert label_columns(labels, np.array([], np.int64), start).tolist() == [-1] * 5
