"""TAR at FAR against a loop over every threshold, and by hand."""

import numpy as np
import pytest

from partial_fc.evaluation.roc import Roc, max_accepted
from partial_fc.utils.progress import progress
from partial_fc_tools.ijb.evaluate import CHUNK, pair_scores
from partial_fc_tools.ijb.report import FARS

BAR = progress(None, "", "")


def slow_points(scores, issame):
    """Returns the curve: numbers of accepted impostor and genuine pairs for each threshold, and (0, 0)."""
    points = [(0, 0)]
    for threshold in sorted(set(scores.tolist()), reverse=True):
        accepted = scores >= threshold
        points.append((int(np.sum(accepted & ~issame)), int(np.sum(accepted & issame))))
    return points


def slow_tars(scores, issame, far):
    """Returns (at most, nearest) by their definitions."""
    impostors, genuines = int(np.sum(~issame)), int(np.sum(issame))
    points = slow_points(scores, issame)
    at_most = max(true for false, true in points if false / impostors <= far)
    distance = min(abs(false / impostors - far) for false, _ in points)
    near = [point for point in points if abs(point[0] / impostors - far) == distance]
    return at_most / genuines, max(near)[1] / genuines


def random_scores(pairs, levels, seed):
    """Returns scores with ties: only ``levels`` steps per unit."""
    rng = np.random.default_rng(seed)
    issame = rng.random(pairs) < 0.3
    issame[:2] = True, False
    scores = rng.normal(size=pairs) + issame
    return (np.round(scores * levels) / levels).astype(np.float32), issame


@pytest.mark.parametrize("pairs, levels", [(2, 1), (50, 0.1), (50, 1), (50, 4), (400, 50)])
@pytest.mark.parametrize("seed", range(2))
def test_both_readings_match_their_definitions(pairs, levels, seed):
    scores, issame = random_scores(pairs, levels, seed)
    roc = Roc(scores, issame)
    for far in (*FARS, 0.005, 0.037, 0.25, 0.5, 0.9, 1.0):
        at_most, nearest = slow_tars(scores, issame, far)
        assert roc.at_most(far).tar == pytest.approx(at_most, abs=1e-12)
        assert roc.nearest(far).tar == pytest.approx(nearest, abs=1e-12)
        assert roc.at_most(far).far <= far  # exactly


@pytest.mark.parametrize("count", [1, 7, 100, 999, 1000, 3000, 15_658_489])
def test_shares_are_counted_exactly(count):
    for accepted in {0, 1, 3, 29, count // 3, count - 1, count} & set(range(count + 1)):
        share = accepted / count
        assert max_accepted(share, count) == max_accepted(min(np.nextafter(share, 1), 1.0), count) == accepted
        assert max_accepted(np.nextafter(share, -1), count) == max(accepted - 1, 0)
    assert max_accepted(0.29, 100) == 29 and max_accepted(0.5, 0) == 0


def test_the_curve_matches_the_definition():
    scores, issame = random_scores(250, 20, 9)
    far, tar = Roc(scores, issame).curve()
    assert (np.diff(far) > 0).all() and (np.diff(tar) >= 0).all() and (far[-1], tar[-1]) == (1.0, 1.0)
    assert far[0] == pytest.approx(1 / np.sum(~issame))
    for share, value in zip(far, tar):
        assert value == pytest.approx(slow_tars(scores, issame, share + 1e-12)[0], abs=1e-12)


def test_scores_are_cosines():
    rng = np.random.default_rng(0)
    templates = rng.normal(size=(40, 8))
    templates = (templates / np.linalg.norm(templates, axis=1, keepdims=True)).astype(np.float32)
    left, right = rng.integers(0, 40, (2, 2 * CHUNK + 5), dtype=np.int32)
    scores = pair_scores(templates, left, right, BAR)
    assert scores.dtype == np.float32
    slow = [float(np.dot(templates[a].astype(float), templates[b].astype(float))) for a, b in zip(left, right)]
    np.testing.assert_allclose(scores, slow, atol=1e-6)
    again = {}
    for pair, score in zip(zip(left.tolist(), right.tolist()), scores.tolist()):
        assert again.setdefault(pair, score) == score  # independent of the position of a pair
