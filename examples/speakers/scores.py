"""Error rates of all pairs of utterances.

Shapes: N utterances, K speakers, E embedding.
"""

import numpy as np

from partial_fc.evaluation.items import EmbeddedItems
from partial_fc.evaluation.metrics import build_metrics, evaluate
from partial_fc.evaluation.score_norm import CohortStatistics

TOP = 20  # nearest speakers of the cohort: 5 % of 400, as WeSpeaker's 300 of 5,994


def figures(embeddings: np.ndarray, speakers: np.ndarray, cohort: np.ndarray | None = None) -> dict[str, float]:
    """Returns the EER and the minDCF, for a genuine probability of 0.01, of all pairs of two utterances.

    Args:
        embeddings: (N, E) of length 1.
        speakers: (N,) integers.
        cohort: (K, E) of length 1, to normalize the scores (AS-norm); None for cosines.
    """
    nearest = None if cohort is None else CohortStatistics.measure(embeddings, cohort, TOP)
    items = EmbeddedItems(embeddings, speakers, cohort=nearest)
    measured = evaluate(items, build_metrics(["eer", "min_dcf"], {}), draws=0)
    return {name: each.value for name, each in measured.items()}
