"""Error rates of all pairs of utterances.

Shapes: N utterances, K speakers, E embedding.
"""

import numpy as np

from partial_fc.evaluation.items import EmbeddedItems
from partial_fc.evaluation.metrics import build_metrics, evaluate
from partial_fc.evaluation.score_norm import CohortStatistics

TOP = 20  # nearest speakers of the cohort: 5 % of 400, as WeSpeaker's 300 of 5,994


def unit(rows: np.ndarray) -> np.ndarray:
    """Returns rows (N, E) of length 1."""
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def figures(embeddings: np.ndarray, speakers: np.ndarray, cohort: np.ndarray | None = None) -> dict[str, float]:
    """Returns the equal error rate and minDCF of all pairs of two utterances; a pair is genuine with probability 0.01.

    Args:
        embeddings: (N, E) of length 1.
        speakers: (N,) integers.
        cohort: (K, E) of length 1, with which scores are normalized (AS-norm); None for cosines.
    """
    embeddings = embeddings.astype(np.float32)
    nearest = None if cohort is None else CohortStatistics.measure(embeddings, cohort.astype(np.float32), TOP)
    items = EmbeddedItems(embeddings, speakers, cohort=nearest)
    found = evaluate(items, build_metrics(["eer", "min_dcf"], {}), draws=0)
    return {name: each.value for name, each in found.items()}


def speaker_means(embeddings: np.ndarray, speakers: np.ndarray) -> np.ndarray:
    """Returns the mean embedding of each speaker (K, E), given (N, E) and speakers (N,) from 0."""
    sums = np.zeros((speakers.max() + 1, embeddings.shape[1]))
    np.add.at(sums, speakers, embeddings)
    return sums / np.bincount(speakers)[:, None]
