"""Equal error rate (EER): where false reject rate and false accept rate are equal, on straight lines between points."""

from collections.abc import Sequence

import numpy as np

from partial_fc.evaluation.pair_counts import Curve

from .metric import PairMetric


class EqualErrorRate(PairMetric):
    """EER."""

    figures = ("eer",)

    def points(self, curve: Curve) -> Sequence[tuple[float, float]]:
        """See PairMetric."""
        difference = curve.false_rejects - curve.false_accepts  # from 1 to -1
        after = int(np.argmax(difference <= 0))
        share = difference[after - 1] / (difference[after - 1] - difference[after])
        rates = curve.false_rejects[after - 1 : after + 1]
        return [(float(rates[0] + share * (rates[-1] - rates[0])), float(curve.thresholds[after]))]
