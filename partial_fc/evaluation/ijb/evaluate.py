"""Evaluates a model on a protocol: 1:1 verification and 1:N identification.

Shapes: P pairs, T templates, E embedding.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from partial_fc.inference.model import FaceModel
from partial_fc.utils.progress import progress

from .embedding import EmbeddingOptions, template_embeddings
from .identification import Identification, identify, mates_of, mean
from .protocol import IjbSet, Search
from .verification import Roc, pair_scores


class Results(NamedTuple):
    """Results of an evaluation.

    Attributes:
        scores: (P,) float32 in the order of the pairs.
        roc: Their ROC curve.
        searches: 1:N results by gallery and "mean"; empty without 1:N lists.
        seconds: Duration by part of the work.
    """

    scores: np.ndarray
    roc: Roc
    searches: dict[str, Identification]
    seconds: dict[str, float]


def evaluate(model: FaceModel, ijb: IjbSet, options: EmbeddingOptions) -> Results:
    """Runs 1:1, and 1:N if the protocol has its lists. Raises the errors of `template_embeddings`."""
    start = time.monotonic()
    templates = template_embeddings(model, ijb.folder, ijb.images, options)
    embedded = time.monotonic()
    with progress(len(ijb.pairs.left), "pair", "scoring pairs") as bar:
        scores = pair_scores(templates, ijb.pairs.left, ijb.pairs.right, bar)
    roc = Roc(scores, ijb.pairs.issame)
    verified = time.monotonic()
    searches = search_galleries(templates, ijb.search) if ijb.search else {}
    seconds = {
        "embedding": embedded - start,
        "verification": verified - embedded,
        "identification": time.monotonic() - verified,
    }
    return Results(scores, roc, searches, seconds)


def search_galleries(templates: np.ndarray, search: Search) -> dict[str, Identification]:
    """Searches every gallery; returns the results by gallery and their mean. ``templates``: (T, E) float32."""
    probes = templates[search.probes.templates]
    results = {}
    with progress(len(probes) * len(search.galleries), "probe", "searching") as bar:
        for name, gallery in search.galleries.items():
            mates = mates_of(search.probes.subjects, gallery.subjects)
            results[name] = identify(probes, templates[gallery.templates], mates, bar)
    return {**results, "mean": mean(list(results.values()))}
