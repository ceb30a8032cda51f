"""Open-set identification (1:N): FNIR at FPIR.

Queries without a mate, an item of their class in the gallery, are impostors. The threshold at FPIR f is the lowest one
that the best scores of at most a share f of the impostors exceed. fnir_at_fpir_f is the share of the other queries that
fail: the best mate does not exceed the threshold, or an item of another class scores at least as high (NIST's FNIR with
rank 1). A draw of the bootstrap repeats queries; the gallery stays complete.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from partial_fc.evaluation.ranking import Ranking, rank
from partial_fc.evaluation.roc import highest_refused

from .metric import Metric, Statistic, name_of, numbers


class OpenSet(Metric):
    """FNIR at FPIRs.

    Args:
        fpirs: values of f.
    """

    source = staticmethod(rank)
    higher_is_better = False

    def __init__(self, fpirs: Any = (0.01, 0.1)):
        self.fpirs = numbers("fpirs", fpirs)
        self.figures = [name_of("fnir_at_fpir", fpir) for fpir in self.fpirs]

    def statistic(self, result: Ranking) -> tuple[Statistic, int]:
        """See Metric. Raises ValueError if every query has an item of its class in the gallery."""
        mated = result.mated
        if mated.all():
            raise ValueError(
                "open_set needs queries without an item of their class in the gallery: remove some classes from it"
            )
        _, unit_of = np.unique(result.classes, return_inverse=True)
        hits = np.where(result.best_mate > result.best_other, result.best_mate, -np.inf)[mated]
        order = np.argsort(result.best_other[~mated])
        impostor, impostor_unit = result.best_other[~mated][order], unit_of[~mated][order]

        def rates(times: np.ndarray | None) -> Sequence[float]:
            times = np.ones(unit_of.max() + 1, np.int64) if times is None else times
            weights, highest = times[unit_of[mated]], np.repeat(impostor, times[impostor_unit])
            if not (weights.any() and len(highest)):
                return [np.nan] * len(self.fpirs)
            return [1 - np.average(hits > highest_refused(highest, fpir), weights=weights) for fpir in self.fpirs]

        return rates, int(unit_of.max()) + 1
