"""ROC and hardest pairs against loops over the definition, and by hand."""

import numpy as np
import pytest

from partial_fc.training.report.charts import roc_curve
from partial_fc.training.report.pictures import hardest_pairs


def slow_roc(distance, issame):
    """Returns [(FAR, TAR)] for every threshold that separates two distances."""
    thresholds = sorted(set(distance))
    points = []
    for threshold in [*thresholds, thresholds[-1] + 1]:
        accepted = [same for d, same in zip(distance, issame) if d < threshold]
        points.append((accepted.count(False) / issame.count(False), accepted.count(True) / issame.count(True)))
    return points


@pytest.mark.parametrize("pairs, levels", [(2, 5), (50, 7), (300, 40), (300, 10**6)])
def test_roc_matches_the_definition(pairs, levels):
    """At most ``levels`` distinct distances: with few, most are tied."""
    rng = np.random.default_rng(pairs + levels)
    issame = np.arange(pairs) % 2 == 0
    distance = rng.integers(0, levels, pairs) / levels + np.where(issame, 0, 0.3)
    far, tar = roc_curve(distance, issame)
    assert far.dtype == tar.dtype == np.float64
    expected = np.array(slow_roc(distance.tolist(), issame.tolist()))
    np.testing.assert_array_equal(far, expected[:, 0])
    np.testing.assert_array_equal(tar, expected[:, 1])


DISTANCE = np.array([0.1, 1.9, 1.2, 0.8, 1.2, 3.0, 0.4, 1.6])
ISSAME = np.array([True, True, True, False, True, False, False, False])


def test_the_worst_pairs_come_first_then_the_nearest():
    """At 1.5 pair 1 is a false reject; 6 and 3 are false accepts, and 7 is nearest to being one."""
    rejects, accepts = hardest_pairs(DISTANCE, ISSAME, 1.5, 3)
    assert rejects.tolist() == [1, 2, 4]  # of equal distances the lower index first
    assert accepts.tolist() == [6, 3, 7]


def test_fewer_pairs_than_requested():
    rejects, accepts = hardest_pairs(DISTANCE, ISSAME, 1.5, 100)
    assert rejects.tolist() == [1, 2, 4, 0] and accepts.tolist() == [6, 3, 7, 5]
    rejects, accepts = hardest_pairs(DISTANCE[:3], ISSAME[:3], 1.5, 2)
    assert rejects.tolist() == [1, 2] and accepts.tolist() == []
