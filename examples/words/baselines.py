"""Baselines without training: edit distances (rapidfuzz), and cosines of character n-grams with TF-IDF (scikit-learn).

Both edit distances are normalized: Levenshtein, and Jaro-Winkler, which gives more weight to common prefixes.
"""

from functools import partial

import numpy as np
from rapidfuzz.distance import JaroWinkler, Levenshtein
from rapidfuzz.process import cdist, cpdist
from sklearn.feature_extraction.text import TfidfVectorizer

from .heldout import Measure
from .lexemes import decode

NGRAMS = (2, 4)  # minimum and maximum length, with a blank before and after the word


def baselines(letters: np.ndarray) -> dict[str, Measure]:
    """Returns the baselines by name. The frequencies of n-grams are those in the training words (N, W) uint8."""
    return {
        "levenshtein": _edit_distance(Levenshtein.normalized_similarity),
        "jaro_winkler": _edit_distance(JaroWinkler.normalized_similarity),
        "n_grams": _n_grams(letters),
    }


def _edit_distance(similarity) -> Measure:
    options = {"scorer": similarity, "dtype": np.float32}
    return Measure(decode, partial(cpdist, **options), partial(cdist, **options))


def _n_grams(letters: np.ndarray) -> Measure:
    vectors = TfidfVectorizer(analyzer="char_wb", ngram_range=NGRAMS, dtype=np.float32).fit(decode(letters))
    return Measure(
        lambda words: vectors.transform(decode(words)),
        lambda left, right: np.asarray(left.multiply(right).sum(axis=1))[:, 0],
        lambda left, right: (left @ right.T).toarray(),
    )
