"""Verification and retrieval of word forms of lexemes that were never trained on.

Pairs: random pairs of forms, half of them of one lexeme, in ten folds that share no lexeme. Search: probes, forms of
the lexemes, in a gallery with the normal form of each. No form is one of another lexeme of the dictionary, so each
probe has one right answer.

Shapes: P pairs, Q probes, M lexemes, W places.
"""

from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from partial_fc.data.synthetic.identity import random_stream
from partial_fc.data.tools.pairs_draw import draw_pairs
from partial_fc.evaluation.ijb.verification import max_accepted
from partial_fc.evaluation.verification import Verification, verify_distances

from .lexemes import Lexemes

PROBES = 202  # stream of random numbers
FARS = {"tar_at_far_1e_4": 1e-4, "tar_at_far_1e_6": 1e-6}
FIGURES = ("rank1", *FARS)  # of a search
SCORES = 5_000_000  # at a time, 20 MB
SPARE = 1000  # other pairs that are kept beyond twice those at the largest FAR: a draw of lexemes may need more
DRAWS = 1000  # of the lexemes, for an interval


class HeldOut(NamedTuple):
    """What is verified and searched."""

    pairs: np.ndarray  # (2P, W) uint8, rows 2p and 2p + 1 are pair p
    issame: np.ndarray  # (P,) bool
    probes: np.ndarray  # (Q, W) uint8
    mates: np.ndarray  # (Q,) the entry of each probe's lexeme
    gallery: np.ndarray  # (M, W) uint8


class Measure(NamedTuple):
    """A similarity of words, at most 1."""

    represent: Callable[[np.ndarray], Any]  # (n, W) uint8 -> a representation of the n words, which can be sliced
    paired: Callable[[Any, Any], np.ndarray]  # two representations of n words -> (n,) similarities
    crossed: Callable[[Any, Any], np.ndarray]  # representations of n and of M words -> (n, M) float32 similarities


def held_out(lexemes: Lexemes, unseen: np.ndarray, pairs: int, probes: int, seed: int) -> HeldOut:
    """Draws pairs and, of each unseen lexeme, at most so many probes.

    Raises:
        ValueError: There are too few forms for the pairs, or their number is no multiple of 20.
    """
    bounds = zip(lexemes.starts[unseen].tolist(), lexemes.starts[unseen + 1].tolist())
    rows = [start + np.flatnonzero(~lexemes.shared[start:stop]) for start, stop in bounds]
    drawn, issame = draw_pairs([len(own) for own in rows], pairs, seed)
    chosen = []
    for lexeme, own in zip(unseen.tolist(), rows):
        order = random_stream(seed, PROBES, lexeme).random(len(own) - 1).argsort(kind="stable")
        chosen.append(own[1:][order[:probes]])
    return HeldOut(
        lexemes.letters[[rows[lexeme][form] for lexeme, form in chain(*drawn)]],
        np.array(issame),
        lexemes.letters[np.concatenate(chosen)],
        np.repeat(np.arange(len(unseen)), [len(own) for own in chosen]),
        lexemes.letters[lexemes.starts[unseen]],
    )


def verify_pairs(measure: Measure, held: HeldOut) -> Verification:
    """Verifies the pairs."""
    left, right = (measure.represent(held.pairs[side::2]) for side in (0, 1))
    return verify_distances(2 - 2 * measure.paired(left, right).astype(np.float64), held.issame)


class Scores(NamedTuple):
    """Scores of a search: of the probes with their mates, and the K highest of all others, ascending."""

    mates: np.ndarray  # (Q,) see HeldOut
    own: np.ndarray  # (Q,) float32
    first: np.ndarray  # (Q,) bool, whether no other entry has the same score or a higher one
    highest: np.ndarray  # (K,) float32
    pairs: np.ndarray  # (K, 2) int64, the mate of the probe and the other entry


def search_scores(
    crossed: Callable[[Any, Any], np.ndarray],
    probes: Any,
    gallery: Any,
    mates: np.ndarray,
    advance: Callable[[], object] = lambda: None,
) -> Scores:
    """Searches the probes in the gallery.

    Args:
        crossed, probes, gallery: of Measure, and representations of Q and M words.
        mates: see HeldOut; every entry has a probe.
        advance: is called often.
    """
    entries = int(mates.max()) + 1
    most = 2 * max_accepted(max(FARS.values()), len(mates) * (entries - 1)) + SPARE
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
    return Scores(mates, own, first, highest, pairs)


def search_hits(scores: Scores) -> dict[str, np.ndarray]:
    """Returns FIGURES of each probe, (Q,) bool.

    They are whether its mate is the first, and has a score above the thresholds that all pairs of a probe and another
    entry pass at most at these FARs.
    """
    different = len(scores.mates) * int(scores.mates.max())
    refused = {name: scores.highest[-1 - max_accepted(far, different)] for name, far in FARS.items()}
    return {"rank1": scores.first, **{name: scores.own > score for name, score in refused.items()}}


def search(*searched: Any) -> dict[str, float]:
    """Returns the shares of the probes with these hits, see `search_scores`."""
    return {name: float(hits.mean()) for name, hits in search_hits(search_scores(*searched)).items()}


def redrawn_shares(scores: Scores) -> dict[str, np.ndarray]:
    """Returns FIGURES, (DRAWS,), of lexemes drawn with replacement, the same for all searches of these lexemes.

    A lexeme that is drawn twice has its probes and its entry twice. Each draw has its own thresholds: few lexemes have
    the scores that decide those of a small FAR. The gallery of rank1 stays whole.
    """
    lexemes = int(scores.mates.max()) + 1
    random = np.random.Generator(np.random.PCG64(0))
    shares: dict[str, list[float]] = {name: [] for name in FIGURES}
    for _ in range(DRAWS):
        times = np.bincount((random.random(lexemes) * lexemes).astype(np.int64), minlength=lexemes)
        weights = times[scores.mates]
        different = int(weights @ (lexemes - weights))
        passed = np.cumsum((times[scores.pairs[:, 0]] * times[scores.pairs[:, 1]])[::-1])  # from the highest score on
        shares["rank1"].append(weights @ scores.first / weights.sum())
        for name, far in FARS.items():
            accepted = np.searchsorted(passed, max_accepted(far, different), side="right")
            refused = scores.highest[-1 - min(int(accepted), len(passed) - 1)]
            shares[name].append(weights @ (scores.own > refused) / weights.sum())
    return {name: np.array(of) for name, of in shares.items()}
