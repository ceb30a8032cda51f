"""Evaluates a search of probes in a gallery with one entry per class, with confidence intervals over the classes.

The mate of a probe is the gallery entry of its class. rank1 is the fraction of probes whose mate has the highest score.
The TAR at a FAR is the fraction of probes whose mate has a score above a threshold. This is the lowest one that
at most a fraction FAR of all pairs of a probe and another entry exceeds. `fars` maps the names of TARs to their FARs.

Shapes: Q probes, M entries, K highest scores, D draws.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from partial_fc.evaluation.roc import max_accepted

from .figures import Figure, half_width

SCORES = 5_000_000  # scores per block, 20 MB
SPARE = 1000  # scores kept in addition to twice the number at the largest FAR, because a draw may need more
DRAWS = 1000  # draws of the classes for an interval


class Scores(NamedTuple):
    """Scores of a search: those of the mates, and the highest of all other pairs in ascending order."""

    entries: int  # M
    mates: np.ndarray  # (Q,) the mate of each probe
    mate_scores: np.ndarray  # (Q,) float32, the score of each mate
    is_first: np.ndarray  # (Q,) bool, whether the mate's score is higher than all others
    highest: np.ndarray  # (K,) float32, the highest scores of other pairs
    pairs: np.ndarray  # (K, 2) int64, for each of these scores the probe's mate and the other entry


def search_scores(
    all_similarities: Callable[[Any, Any], np.ndarray],
    probes: Any,
    gallery: Any,
    mates: np.ndarray,
    fars: Mapping[str, float],
    advance: Callable[[], object] = lambda: None,
) -> Scores:
    """Searches the probes in the gallery.

    Args:
        all_similarities: returns the similarities (n, M) float32 of n probes and all entries.
        probes: the probes, which can be sliced.
        gallery: the entries.
        mates: (Q,) the mate of each probe. An entry may have no probe.
        fars: FARs by the names of the TARs.
        advance: called after each block, to report progress.
    """
    entries = all_similarities(probes[:1], gallery).shape[1]
    most = 2 * max_accepted(max(fars.values()), len(mates) * (entries - 1)) + SPARE
    highest, pairs = np.empty(0, np.float32), np.empty((0, 2), np.int64)
    mate_scores, is_first = np.empty(len(mates), np.float32), np.empty(len(mates), bool)
    lowest = np.finfo(np.float32).min  # of the scores that may be among the K highest; a mate's score is set to -inf
    step = max(1, SCORES // entries)
    for start in range(0, len(mates), step):
        part = slice(start, start + step)
        scores = all_similarities(probes[part], gallery)
        index = np.arange(len(scores)), mates[part]
        mate_scores[part] = scores[index]
        scores[index] = -np.inf
        is_first[part] = scores.max(axis=1) < mate_scores[part]
        if len(highest) == most:
            lowest = highest[0]
        elif scores.size > most:
            lowest = np.partition(scores.ravel(), -most)[-most]
        probe, entry = np.nonzero(scores >= lowest)
        highest = np.concatenate([highest, scores[probe, entry]])
        pairs = np.concatenate([pairs, np.stack([mates[part][probe], entry], axis=1)])
        order = np.argsort(highest, kind="stable")[-most:]
        highest, pairs = highest[order], pairs[order]
        advance()
    return Scores(entries, mates, mate_scores, is_first, highest, pairs)


def search_shares(scores: Scores, fars: Mapping[str, float]) -> dict[str, float]:
    """Returns rank1 and the TARs."""
    return _shares(scores, fars, np.ones(scores.entries, np.int64))


def redrawn_shares(scores: Scores, fars: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Returns rank1 and the TARs, (D,) each, for classes drawn with replacement.

    All searches of the same classes have the same draws. A class that is drawn twice has its probes and its entry
    twice. Each draw has its own thresholds, because few classes determine the threshold of a small FAR. rank1 always
    uses the whole gallery.
    """
    random = np.random.Generator(np.random.PCG64(0))
    draws = []
    for _ in range(DRAWS):
        drawn = (random.random(scores.entries) * scores.entries).astype(np.int64)
        draws.append(_shares(scores, fars, np.bincount(drawn, minlength=scores.entries)))
    return {name: np.array([shares[name] for shares in draws]) for name in draws[0]}


def search_figures(scores: Scores, fars: Mapping[str, float]) -> dict[str, Figure]:
    """Returns rank1 and the TARs with their intervals."""
    redrawn = redrawn_shares(scores, fars)
    return {name: Figure(share, half_width(redrawn[name])) for name, share in search_shares(scores, fars).items()}


def _shares(scores: Scores, fars: Mapping[str, float], times: np.ndarray) -> dict[str, float]:
    """Returns rank1 and the TARs if each class occurs ``times`` (M,) times."""
    weights = times[scores.mates]
    total, different = int(weights.sum()), int(weights @ (times.sum() - weights))
    passed = np.cumsum((times[scores.pairs[:, 0]] * times[scores.pairs[:, 1]])[::-1])  # from the highest score down
    shares = {"rank1": float(weights @ scores.is_first / total)}
    for name, far in fars.items():
        accepted = int(np.searchsorted(passed, max_accepted(far, different), side="right"))
        refused = scores.highest[-1 - min(accepted, len(passed) - 1)]
        shares[name] = float(weights @ (scores.mate_scores > refused) / total)
    return shares
