"""Rates at one threshold, compared with counting pair by pair."""

import numpy as np
import pytest

from partial_fc.evaluation.verification import accuracy_by_fold
from partial_fc_tools.report.pair_groups import read_groups
from partial_fc_tools.verify.pair_rates import (
    Rate,
    correct_pairs,
    pair_rates,
    rates_by_group,
    rates_by_rejection,
    shared_threshold,
)

PAIRS = 400
RNG = np.random.default_rng(3)
ISSAME = RNG.random(PAIRS) < 0.4
DISTANCE = np.clip(RNG.normal(np.where(ISSAME, 0.9, 1.8), 0.5), 0, 4).round(2)  # with ties


@pytest.mark.parametrize(
    "events, total, low, high",
    [
        # scipy.stats.binomtest(events, total).proportion_ci(method="wilson"), SciPy 1.17
        (0, 100, 0.0, 0.036993),
        (1, 100, 0.001767, 0.054486),
        (50, 100, 0.403832, 0.596168),
        (3, 3000, 0.000340, 0.002936),
        (7, 7, 0.645670, 1.0),
    ],
)
def test_wilson_interval(events, total, low, high):
    assert Rate(events, total).interval == pytest.approx((low, high), abs=2e-6)
    assert Rate(0, 0).interval == (0, 1) and Rate(0, 0).share is None


def counted(pairs, threshold):
    """Counts the rates of pairs (distance, same)."""
    rejects = sum(1 for d, same in pairs if same and not d < threshold)
    accepts = sum(1 for d, same in pairs if not same and d < threshold)
    same = sum(1 for _, same in pairs if same)
    return (rejects, same), (accepts, len(pairs) - same)


@pytest.mark.parametrize("far", [0.0011, 0.01, 0.1, 0.5])
def test_the_threshold_is_the_highest_with_that_far(far):
    threshold = shared_threshold(DISTANCE, ISSAME, far)
    rates = pair_rates(DISTANCE, ISSAME, threshold)
    assert rates == counted(list(zip(DISTANCE, ISSAME)), threshold)
    assert rates.false_accepts.share <= far
    above = pair_rates(DISTANCE, ISSAME, np.nextafter(threshold, 5))
    assert above.false_accepts.share > far


def test_groups_have_the_rates_of_their_pairs():
    groups = RNG.choice(["b", "a", "c"], PAIRS).tolist()
    found = rates_by_group(DISTANCE, ISSAME, groups, 1.3)
    assert list(found) == ["a", "b", "c"]
    for name, rates in found.items():
        of_group = [(d, same) for d, same, group in zip(DISTANCE, ISSAME, groups) if group == name]
        assert rates == counted(of_group, 1.3)


def test_rejection_drops_the_pairs_of_the_worst_images():
    """Images are in several pairs; each counts once."""
    of_image = RNG.permutation(np.arange(2 * PAIRS) % 300)
    images = [b"image %d" % number for number in of_image]
    quality = RNG.random(300)
    found = rates_by_rejection(DISTANCE, ISSAME, quality[of_image], images, 1.3, (0.0, 0.1, 0.5))
    for share, rates in found.items():
        worst = set(np.argsort(quality)[: round(share * 300)].tolist())
        kept = [(DISTANCE[p], ISSAME[p]) for p in range(PAIRS) if not worst & {of_image[2 * p], of_image[2 * p + 1]}]
        assert rates == counted(kept, 1.3)
    assert found[0.0] == pair_rates(DISTANCE, ISSAME, 1.3)


@pytest.mark.parametrize("folds", [10, 7])
def test_correct_pairs_are_those_of_the_accuracy(folds):
    _, thresholds = accuracy_by_fold(DISTANCE, ISSAME, folds)
    right = [
        np.count_nonzero((DISTANCE[fold] < threshold) == ISSAME[fold])
        for fold, threshold in zip(np.array_split(np.arange(PAIRS), folds), thresholds)
    ]
    assert correct_pairs(DISTANCE, ISSAME, folds)[:2] == (sum(right), PAIRS)


SAME = np.array([True, False, True])


@pytest.mark.parametrize(
    "text, columns, expected",
    [
        ("same,sex,age\n1,f,old\n0,m,\n1,f,young\n", [], {"sex": ["f", "m", "f"], "age": ["old", "(empty)", "young"]}),
        ("\ufeffsex,age\nf,1\nm,2\nf,3\n", ["age"], {"age": ["1", "2", "3"]}),
        ("same;sex;cm\r\n1;f;1,5\r\n\r\n0;m;1,6\r\n1;f;1,7", ["cm"], {"cm": ["1,5", "1,6", "1,7"]}),
        ("same\tage, years\n1\t1;\n0\t2\n1\t3\n", [], {"age, years": ["1;", "2", "3"]}),
        ("same|sex\n1|f\n0|m\n1|f\n", [], {"sex": [*"fmf"]}),
        ("same, sex,\n1, f,\n0, m,\n1, f,\n", [], {"sex": [*"fmf"]}),  # a delimiter ends each line
        ('sex;place\nf;"a;b"\nm;"a\nb"\nf;c\n', ["place"], {"place": ["a;b", "a\nb", "c"]}),
        ("sex\nf\nm\nf\n", [], {"sex": [*"fmf"]}),
    ],
)
def test_groups_of_a_file(text, columns, expected, tmp_path):
    (tmp_path / "groups.csv").write_bytes(text.encode())
    assert read_groups(tmp_path / "groups.csv", columns, SAME) == expected


@pytest.mark.parametrize(
    "text, columns, message",
    [
        ("sex\nf\nm\n", [], "2 lines .* 3 pairs"),
        ("sex\nf\nm\nf\n", ["age"], "no column age"),
        ("same,sex\n1,f\n1,m\n1,f\n", [], "line 3 has same='1'"),
        ("same;sex\n1;f\n\n1;m\n1;f\n", [], "line 4 has same='1'"),
        ("sex,age,sex\nf,1,m\nm,2,f\nf,3,m\n", ["age"], "two columns .* sex"),
        ("sex;age\nf;1\nm\nf;3\n", [], "line 3 has 1 field"),
        ("a;b,c\n1;2,3\n1;2,3\n1;2,3\n", [], "',' and at ';'"),
        ("", [], "0 lines"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(text, columns, message, tmp_path):
    (tmp_path / "groups.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_groups(tmp_path / "groups.csv", columns, SAME)
