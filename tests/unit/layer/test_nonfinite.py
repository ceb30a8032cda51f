"""The message that names the ranks whose values made a loss infinite or NaN."""

import numpy as np
import pytest

from partial_fc.layer.nonfinite import nonfinite_source

RANKS, GLOBAL_BATCH, EMBEDDING = 3, 6, 2


@pytest.fixture
def features():
    return np.ones((GLOBAL_BATCH, EMBEDDING), np.float32)


@pytest.fixture
def statistics():
    """The second rank holds no center: its maximum is minus infinity."""
    values = np.ones((3 * RANKS, GLOBAL_BATCH), np.float32)
    values[3] = -np.inf
    return values


def test_features_are_named_before_centers(features, statistics):
    features[2, 1], statistics[0] = np.inf, np.nan
    assert nonfinite_source(features, statistics, RANKS) == "non-finite features on rank 1"
    features[5, 0] = np.nan
    assert nonfinite_source(features, statistics, RANKS) == "non-finite features on ranks 1, 2"


def test_centers_are_named_by_a_nan_in_the_statistics(features, statistics):
    statistics[7, 4] = np.nan
    assert nonfinite_source(features, statistics, RANKS) == "non-finite centers on rank 2"


def test_no_rank_is_named_if_all_values_are_finite(features, statistics):
    assert nonfinite_source(features, statistics, RANKS) == "all features and centers are finite"
