"""Figures of a search of probes in a gallery with one entry of each class, and their intervals over the classes.

rank1 is the share of the probes whose mate, the entry of their class, is the first. The TAR at a FAR is the share of
those whose mate has a score above the threshold that all pairs of a probe and another entry pass at most at this FAR.
`fars` are the FARs by the names of these figures.

Shapes: Q probes, M entries, K highest scores, D draws.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from partial_fc.evaluation.roc import max_accepted

from .figures import Figure, half_width

SCORES = 5_000_000  # at a time, 20 MB
SPARE = 1000  # other pairs that are kept beyond twice those at the largest FAR: a draw of classes may need more
DRAWS = 1000  # of the classes, for an interval


class Scores(NamedTuple):
    """Scores of a search: of the probes with their mates, and the highest of all others, ascending."""

    entries: int  # M
    mates: np.ndarray  # (Q,) the entry of each probe's class
    own: np.ndarray  # (Q,) float32
    first: np.ndarray  # (Q,) bool, whether no other entry has the same score or a higher one
    highest: np.ndarray  # (K,) float32
    pairs: np.ndarray  # (K, 2) int64, the mate of the probe and the other entry


def search_scores(
    crossed: Callable[[Any, Any], np.ndarray],
    probes: Any,
    gallery: Any,
    mates: np.ndarray,
    fars: Mapping[str, float],
    advance: Callable[[], object] = lambda: None,
) -> Scores:
    """Searches the probes in the gallery.

    Args:
        crossed: returns the (n, M) float32 similarities of n probes and the entries.
        probes, gallery: what it takes. The probes can be sliced.
        mates: see Scores. An entry may have no probe.
        fars: see above.
        advance: is called often.
    """
    entries = crossed(probes[:1], gallery).shape[1]
    most = 2 * max_accepted(max(fars.values()), len(mates) * (entries - 1)) + SPARE
    highest, pairs = np.empty(0, np.float32), np.empty((0, 2), np.int64)
    own, first = np.empty(len(mates), np.float32), np.empty(len(mates), bool)
    lowest = np.finfo(np.float32).min  # of the scores that may count, not of a mate's
    step = max(1, SCORES // entries)
    for start in range(0, len(mates), step):
        part = slice(start, start + step)
        scores = crossed(probes[part], gallery)
        place = np.arange(len(scores)), mates[part]
        own[part] = scores[place]
        scores[place] = -np.inf
        first[part] = scores.max(axis=1) < own[part]
        if len(highest) == most:
            lowest = highest[0]
        elif scores.size > most:
            lowest = np.partition(scores.ravel(), -most)[-most]
        found = np.nonzero(scores >= lowest)
        highest = np.concatenate([highest, scores[found]])
        pairs = np.concatenate([pairs, np.stack([mates[part][found[0]], found[1]], axis=1)])
        order = np.argsort(highest, kind="stable")[-most:]
        highest, pairs = highest[order], pairs[order]
        advance()
    return Scores(entries, mates, own, first, highest, pairs)


def search_shares(scores: Scores, fars: Mapping[str, float]) -> dict[str, float]:
    """Returns rank1 and the TARs."""
    return _shares(scores, fars, np.ones(scores.entries, np.int64))


def redrawn_shares(scores: Scores, fars: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Returns rank1 and the TARs, (D,), of classes drawn with replacement, the same for all searches of these classes.

    A class that is drawn twice has its probes and its entry twice. Each draw has its own thresholds: few classes have
    the scores that decide those of a small FAR. The gallery of rank1 stays whole.
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
    """Returns rank1 and the TARs if each class is there so many times, (M,)."""
    weights = times[scores.mates]
    total, different = int(weights.sum()), int(weights @ (times.sum() - weights))
    passed = np.cumsum((times[scores.pairs[:, 0]] * times[scores.pairs[:, 1]])[::-1])  # from the highest score on
    shares = {"rank1": float(weights @ scores.first / total)}
    for name, far in fars.items():
        accepted = int(np.searchsorted(passed, max_accepted(far, different), side="right"))
        refused = scores.highest[-1 - min(accepted, len(passed) - 1)]
        shares[name] = float(weights @ (scores.own > refused) / total)
    return shares
