"""The figures of a search and their intervals, compared with loops over all pairs; means over seeds."""

import math

import numpy as np
import pytest

from examples import search_figures
from examples.figures import Figure, half_width, mean_difference, mean_of, percent
from examples.search_figures import redrawn_shares, search_scores, search_shares
from partial_fc.evaluation.verification import accuracy_margin

ENTRIES = 60
FARS = {"tar": 0.01, "strict": 0.0005}


@pytest.fixture
def mates():
    """Up to four probes per entry, and none for the last ones."""
    random = np.random.default_rng(1)
    return random.permutation(np.repeat(np.arange(ENTRIES - 3), random.integers(0, 5, ENTRIES - 3)))


@pytest.fixture(params=[0, 6], ids=["ties", "no ties"])
def scores(mates, request):
    """(Q, M) scores of an exponential distribution, so that some other pairs score higher than mates."""
    random = np.random.default_rng(0)
    scores = random.exponential(size=(len(mates), ENTRIES))
    scores[np.arange(len(mates)), mates] += 4
    return scores.round(request.param).astype(np.float32)


def searched(scores, mates):
    return search_scores(lambda probes, _: scores[probes].copy(), np.arange(len(scores)), None, mates, FARS)


def expected(scores, own):
    """The figures of a search whose mates are marked by `own` (Q, M), by trying all thresholds."""
    shares = {"rank1": np.mean([row[is_own].max() > row[~is_own].max() for row, is_own in zip(scores, own)])}
    for name, far in FARS.items():
        others, mates = scores[~own], scores.max(axis=1, where=own, initial=-np.inf)
        refused = next(score for score in np.unique(others) if np.sum(others > score) <= int(far * others.size))
        shares[name] = np.mean(mates > refused)
    return shares


def test_shares_equal_a_loop_over_all_pairs(scores, mates, monkeypatch):
    monkeypatch.setattr(search_figures, "SCORES", 7 * ENTRIES)
    monkeypatch.setattr(search_figures, "SPARE", 0)
    found = search_shares(searched(scores, mates), FARS)
    assert found == pytest.approx(expected(scores, mates[:, None] == np.arange(ENTRIES)))
    assert 0 < found["strict"] < found["tar"] <= 1


def test_a_draw_of_classes_equals_a_search_of_the_drawn_classes(scores, mates, monkeypatch):
    monkeypatch.setattr(search_figures, "DRAWS", 3)
    found = redrawn_shares(searched(scores, mates), FARS)
    places = np.random.Generator(np.random.PCG64(0)).random((3, ENTRIES))
    for number, drawn in enumerate((places * ENTRIES).astype(int)):
        rows = np.concatenate([np.flatnonzero(mates == entry) for entry in drawn])
        shares = expected(scores[rows][:, drawn], mates[rows][:, None] == drawn)
        for name in FARS:
            assert found[name][number] == pytest.approx(shares[name])
        whole = expected(scores[rows], mates[rows][:, None] == np.arange(ENTRIES))
        assert found["rank1"][number] == pytest.approx(whole["rank1"])  # the gallery stays whole


def test_an_interval_includes_the_variation_of_the_threshold():
    """Two of 200 entries are close to all probes. The threshold depends on how many of them are drawn."""
    random = np.random.default_rng(0)
    mates = np.repeat(np.arange(200), 4)
    scores = random.random((800, 200), np.float32)
    scores[:, :2] += 2
    scores[np.arange(800), mates] = 4 * random.random(800)
    kept = search_scores(lambda probes, _: scores[probes].copy(), np.arange(800), None, mates, {"tar": 0.009})
    refused = search_shares(kept, {"tar": 0.009})["tar"]
    of_classes = (kept.mate_scores > np.quantile(kept.mate_scores, 1 - refused)).reshape(200, 4).mean(axis=1)
    fixed = 1.96 * of_classes.std() / 200**0.5  # at one threshold
    assert half_width(redrawn_shares(kept, {"tar": 0.009})["tar"]) > 3 * fixed


def test_three_seeds_have_an_interval_over_the_seeds():
    assert mean_of([0.1, 0.2, 0.6]) == pytest.approx((0.3, 4.303 * math.sqrt(0.07 / 3)))
    assert math.isnan(mean_of([0.1, 0.2]).margin)
    drawn = [np.linspace(-1, 1, 1001), np.linspace(3, 1, 1001)]
    assert mean_difference([0.1, 0.4], drawn) == pytest.approx((0.25, 0), abs=1e-9)  # the draws' means are all equal
    assert mean_difference([0.1], drawn[:1]) == pytest.approx((0.1, 0.95))
    assert mean_difference([0.1, 0.2, 0.6], [*drawn, drawn[0]]) == mean_of([0.1, 0.2, 0.6])
    assert math.isnan(mean_difference([0.1], []).margin)


def test_the_interval_over_folds_is_that_over_seeds():
    accuracies = np.random.default_rng(0).random(10)
    assert accuracy_margin(accuracies.std()) == pytest.approx(mean_of(accuracies.tolist()).margin)


def test_figures_are_shown_in_percent():
    assert percent(Figure(0.1234, 0.005)) == "12.34 ± 0.50" and percent(Figure(0.5, float("nan"))) == "50.00"
    assert percent(Figure(0.0004, 0.001), "+") == "+0.04 ± 0.10" and percent(Figure(-0.01, 0), "+") == "-1.00 ± 0.00"
