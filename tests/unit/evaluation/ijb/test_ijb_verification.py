"""TAR at FAR against a loop over every threshold, and by hand."""

import numpy as np
import pytest
from ijb_files import Bar

from partial_fc.evaluation.ijb.verification import CHUNK, FARS, Roc, max_accepted, pair_scores


def slow_points(scores, issame):
    """Returns the curve: (accepted impostor pairs, accepted genuine pairs) for each threshold, and (0, 0)."""
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


@pytest.mark.parametrize("pairs, levels", [(2, 1), (3, 1), (50, 1), (50, 4), (400, 3), (400, 50), (300, 1000)])
@pytest.mark.parametrize("seed", range(5))
def test_both_readings_match_their_definitions(pairs, levels, seed):
    scores, issame = random_scores(pairs, levels, seed)
    roc = Roc(scores, issame)
    for far in (*FARS, 0.005, 0.037, 0.25, 0.5, 0.9, 1.0):
        at_most, nearest = slow_tars(scores, issame, far)
        assert roc.at_most(far) == pytest.approx(at_most, abs=1e-12)
        assert roc.nearest(far) == pytest.approx(nearest, abs=1e-12)


def test_by_hand():
    genuine = [0.9, 0.8, 0.7, 0.6, 0.5]
    impostor = [0.85, 0.7, 0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
    roc = Roc(np.float32(genuine + impostor), np.arange(15) < 5)
    assert roc.at_most(1e-6) == 0.2  # no impostor pair: above 0.85
    assert roc.at_most(0.1) == 0.4  # one: above 0.7, the score of a genuine pair, too
    assert roc.at_most(0.19) == 0.4
    assert roc.at_most(0.2) == 1.0
    assert roc.nearest(0.04) == 0.2 and roc.nearest(0.06) == 0.4  # the points at 0 and at 0.1
    assert roc.nearest(0.05) == 0.4  # equally near to both: the higher FAR


def test_equal_scores_are_accepted_together():
    """Four of five impostor pairs have equal scores: the curve has no point between FAR 0.2 and 1."""
    scores = np.float32([0.9, 0.5, 0.5, 0.5, 0.5, 0.95, 0.5, 0.4])
    roc = Roc(scores, np.arange(8) >= 5)
    assert roc.at_most(0.2) == roc.at_most(0.6) == roc.at_most(0.99) == pytest.approx(1 / 3)
    assert roc.nearest(0.55) == pytest.approx(1 / 3) and roc.nearest(0.65) == 1.0
    assert roc.at_most(1.0) == 1.0


def test_a_constant_model_has_tar_zero():
    roc = Roc(np.ones(100, np.float32), np.arange(100) < 50)
    assert [roc.at_most(far) for far in FARS] == [0.0] * 6 and roc.at_most(1.0) == 1.0


def test_the_curve_matches_the_definition():
    scores, issame = random_scores(250, 20, 9)
    far, tar = Roc(scores, issame).curve()
    assert (np.diff(far) > 0).all() and (np.diff(tar) >= 0).all() and (far[-1], tar[-1]) == (1.0, 1.0)
    assert far[0] == pytest.approx(1 / np.sum(~issame))
    for share, value in zip(far, tar):
        assert value == pytest.approx(slow_tars(scores, issame, share + 1e-12)[0], abs=1e-12)


def test_max_accepted():
    assert [max_accepted(0.29, 100), max_accepted(1e-6, 10**6), max_accepted(0.1, 30), max_accepted(0.1, 29)] == [
        29,
        1,
        3,
        2,
    ]


def test_scores_are_cosines():
    rng = np.random.default_rng(0)
    templates = rng.normal(size=(40, 8))
    templates = (templates / np.linalg.norm(templates, axis=1, keepdims=True)).astype(np.float32)
    left, right = rng.integers(0, 40, (2, 2 * CHUNK + 5), dtype=np.int32)
    bar = Bar()
    scores = pair_scores(templates, left, right, bar)
    assert scores.dtype == np.float32 and bar.done == len(left)
    slow = [float(np.dot(templates[a].astype(float), templates[b].astype(float))) for a, b in zip(left, right)]
    np.testing.assert_allclose(scores, slow, atol=1e-6)
    again = {}
    for pair, score in zip(zip(left.tolist(), right.tolist()), scores.tolist()):
        assert again.setdefault(pair, score) == score  # independent of the position of a pair
