"""1:N identification against a loop over probes, and by hand."""

import numpy as np
import pytest

from partial_fc.utils.progress import progress
from partial_fc_tools.ijb.identification import FPIRS, RANKS, identify

BAR = progress(None, "", "")


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def slow_identify(probes, gallery, mates):
    """Returns (rank-1, 5, 10), (TPIR at each FPIR, or None) by their definitions, probe by probe."""
    hits, genuine, alarms = [0] * len(RANKS), [], []
    for probe, mate in zip(probes, mates):
        scores = [float(score) for score in probe @ gallery.T]
        if mate < 0:
            alarms.append(max(scores))
            continue
        others = [score for column, score in enumerate(scores) if column != mate]
        mate_rank = 1 + sum(score >= scores[mate] for score in others)
        hits = [count + (mate_rank <= rank) for count, rank in zip(hits, RANKS)]
        genuine.append(scores[mate] if mate_rank == 1 else -9)
    rates = []
    for fpir in FPIRS:
        # Candidate thresholds: every score, and one above all scores.
        good = [
            sum(score >= threshold for score in genuine) / len(genuine)
            for threshold in [*genuine, *alarms, 9.0]
            if threshold > -9 and sum(alarm >= threshold for alarm in alarms) <= fpir * len(alarms) + 1e-9
        ]
        rates.append(max(good))
    return [count / len(genuine) for count in hits], rates if alarms else None


def random_search(probes, gallery, known, noise, seed):
    rng = np.random.default_rng(seed)
    templates = unit(rng.normal(size=(gallery, 6)))
    mates = np.where(rng.random(probes) < known, rng.integers(0, gallery, probes), -1)
    mates[0] = 0
    rows = np.where(mates[:, None] >= 0, templates[mates], 0) + noise * rng.normal(size=(probes, 6))
    return unit(rows), templates, mates


@pytest.mark.parametrize(
    "probes, gallery, known, noise, seed",
    [
        *((60, 20, 0.5, 0.4, seed) for seed in range(3)),
        *((150, 12, 0.05, 0.5, seed) for seed in range(3)),
        (40, 15, 1.1, 0.5, 0),  # every probe has a mate
        (2051, 9, 0.5, 0.4, 7),
    ],
)
def test_identification_matches_the_definition(probes, gallery, known, noise, seed):
    rows, templates, mates = random_search(probes, gallery, known, noise, seed)
    result = identify(rows, templates, mates, BAR)
    ranks, rates = slow_identify(rows, templates, mates)
    assert [result.rank(rank) for rank in RANKS] == pytest.approx(ranks)
    assert (result.mated, result.unmated) == (np.sum(mates >= 0), np.sum(mates < 0))
    if rates is None:
        assert result.tpir is None
    else:
        assert [result.tpir[fpir] for fpir in FPIRS] == pytest.approx(rates)


def axis(*axes):
    """Returns unit vectors along axes of a three-dimensional space."""
    return np.eye(3, dtype=np.float32)[list(axes)]


def test_a_constant_model_has_rank_1_zero():
    gallery, probes = axis(*[0] * 12), axis(0, 0, 0)
    result = identify(probes, gallery, np.array([0, 11, -1]), BAR)
    assert [result.rank(rank) for rank in RANKS] == [0, 0, 0] and result.tpir == {0.01: 0.0, 0.1: 0.0}


def test_a_mate_beside_its_double_is_not_identified():
    """Though no probe without a mate comes near both."""
    result = identify(axis(0, 2), axis(0, 0, 1), np.array([0, -1]), BAR)
    assert result.rank(1) == 0 and result.tpir == {0.01: 0.0, 0.1: 0.0}


def test_probes_without_any_mate_are_refused():
    with pytest.raises(ValueError, match="no probe has its subject in the gallery"):
        identify(axis(0), axis(0), np.array([-1]), BAR)
