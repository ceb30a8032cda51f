"""Minimum detection cost (minDCF) of NIST's speaker recognition evaluations.

The cost of a threshold is c_miss * p_target * FRR + c_fa * (1 - p_target) * FAR, divided by the cost of the better
system that accepts everything or nothing. min_dcf is its minimum over all thresholds.
"""

from collections.abc import Sequence

import numpy as np

from partial_fc.evaluation.pair_counts import Curve
from partial_fc.utils.options import checked

from .metric import PairMetric


class DetectionCost(PairMetric):
    """minDCF.

    Args:
        p_target: probability of a genuine pair.
        c_miss, c_fa: costs of a false reject and of a false accept.

    Attributes:
        miss, accept: c_miss p_target and c_fa (1 - p_target), costs of accepting nothing and everything.
    """

    figures = ("min_dcf",)

    def __init__(self, p_target: float = 0.01, c_miss: float = 1.0, c_fa: float = 1.0):
        self.p_target, miss, accept = checked("metrics", p_target=p_target, c_miss=c_miss, c_fa=c_fa)
        self.miss, self.accept = miss * self.p_target, accept * (1 - self.p_target)

    def points(self, curve: Curve) -> Sequence[tuple[float, float]]:
        """See PairMetric."""
        costs = self.cost(curve.false_rejects, curve.false_accepts)
        best = int(np.argmin(costs))
        return [(float(costs[best]), float(curve.thresholds[best]))]

    def cost(self, false_rejects: np.ndarray, false_accepts: np.ndarray) -> np.ndarray:
        """Returns the normalized cost of error rates, arrays of any shape."""
        return (self.miss * false_rejects + self.accept * false_accepts) / min(self.miss, self.accept)
