"""Verification and retrieval of word forms of unseen lexemes, which were not trained on.

The pairs are random forms, half of them of the same lexeme, in ten folds that share no lexeme. The search looks up
forms, the probes, in a gallery of the lexemes' normal forms. Each of these forms occurs in only one lexeme of
the dictionary, so each probe has one right answer.

Shapes: P pairs, Q probes, M lexemes, W places.
"""

from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from partial_fc.data.synthetic.identity import random_stream
from partial_fc.evaluation.verification import Verification, verify_distances
from partial_fc_tools.sets.pairs_draw import draw_pairs

from ..search_figures import search_scores, search_shares
from .lexemes import Lexemes

PROBES = 202  # random stream
FARS = {"tar_at_far_1e_4": 1e-4, "tar_at_far_1e_6": 1e-6}
FIGURES = ("rank1", *FARS)  # figures of a search


class HeldOut(NamedTuple):
    """Words for verification and search."""

    pairs: np.ndarray  # (2P, W) uint8, rows 2p and 2p + 1 are pair p
    issame: np.ndarray  # (P,) bool
    probes: np.ndarray  # (Q, W) uint8
    mates: np.ndarray  # (Q,) the entry of each probe's lexeme
    gallery: np.ndarray  # (M, W) uint8


class Measure(NamedTuple):
    """A similarity of words, at most 1."""

    represent: Callable[[np.ndarray], Any]  # (n, W) uint8 -> representation of the n words, which can be sliced
    pair_similarities: Callable[[Any, Any], np.ndarray]  # two representations of n words -> (n,) similarities
    all_similarities: Callable[
        [Any, Any], np.ndarray
    ]  # representations of n and of M words -> (n, M) float32 similarities


def held_out(lexemes: Lexemes, unseen: np.ndarray, pairs: int, probes: int, seed: int) -> HeldOut:
    """Draws pairs and probes.

    Args:
        lexemes: the set.
        unseen: lexemes to draw from.
        pairs: number of pairs, a multiple of 20.
        probes: maximum number of probes per lexeme.
        seed: seed of the draws.

    Raises:
        ValueError: there are too few forms for the pairs, or their number is not a multiple of 20.
    """
    bounds = zip(lexemes.starts[unseen].tolist(), lexemes.starts[unseen + 1].tolist())
    rows = [start + np.flatnonzero(~lexemes.shared[start:stop]) for start, stop in bounds]
    drawn, issame = draw_pairs([len(forms) for forms in rows], pairs, seed)
    chosen = []
    for lexeme, forms in zip(unseen.tolist(), rows):
        order = random_stream(seed, PROBES, lexeme).random(len(forms) - 1).argsort(kind="stable")
        chosen.append(forms[1:][order[:probes]])
    return HeldOut(
        lexemes.letters[[rows[lexeme][form] for lexeme, form in chain(*drawn)]],
        np.array(issame),
        lexemes.letters[np.concatenate(chosen)],
        np.repeat(np.arange(len(unseen)), [len(forms) for forms in chosen]),
        lexemes.letters[lexemes.starts[unseen]],
    )


def verify_pairs(measure: Measure, held: HeldOut) -> Verification:
    """Verifies the pairs."""
    left, right = (measure.represent(held.pairs[side::2]) for side in (0, 1))
    return verify_distances(2 - 2 * measure.pair_similarities(left, right).astype(np.float64), held.issame)


def search(
    all_similarities: Callable[[Any, Any], np.ndarray],
    probes: Any,
    gallery: Any,
    mates: np.ndarray,
    advance: Callable[[], object] = lambda: None,
) -> dict[str, float]:
    """Returns the FIGURES of a search, see search_scores()."""
    return search_shares(search_scores(all_similarities, probes, gallery, mates, FARS, advance), FARS)
