"""The ranks that caused an infinite or NaN loss are named."""

import numpy as np
import pytest

from partial_fc.layer.nonfinite import nonfinite_loss

RANKS, GLOBAL_BATCH, EMBEDDING = 3, 6, 2


@pytest.mark.parametrize(
    "bad_features, bad_statistics, source",
    [
        ([], [], "all features and centers are finite"),
        ([], [7], "non-finite centers on rank 2"),
        ([2], [0], "non-finite features on rank 1"),  # they make the statistics of all ranks non-finite
        ([2, 5], [], "non-finite features on ranks 1, 2"),
    ],
)
def test_the_ranks_are_named(bad_features, bad_statistics, source):
    features = np.ones((GLOBAL_BATCH, EMBEDDING), np.float32)
    features[bad_features, 1] = np.inf
    statistics = np.ones((3 * RANKS, GLOBAL_BATCH), np.float32)
    statistics[3] = -np.inf  # the maximum of the second rank, which has no centers
    statistics[bad_statistics, 4] = np.nan
    error = nonfinite_loss(np.nan, 7, features, statistics.reshape(RANKS, 3, -1), fp16=True)
    assert str(error).startswith(f"the loss is nan at update 7 ({source}): ") and "fp16=False" in str(error)
