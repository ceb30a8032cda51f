"""True accept rate at false accept rate f (TAR at FAR): the largest TAR of all thresholds with a FAR of at most f."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from partial_fc.evaluation.pair_counts import Curve

from .metric import PairMetric, name_of, numbers


class AcceptRate(PairMetric):
    """TAR at FARs.

    Args:
        fars: values of f.
    """

    higher_is_better = True

    def __init__(self, fars: Any = (1e-3, 1e-4)):
        self.fars = numbers("fars", fars)
        self.figures = [name_of("tar_at_far", far) for far in self.fars]

    def points(self, curve: Curve) -> Sequence[tuple[float, float]]:
        """See PairMetric."""
        last = [int(np.searchsorted(curve.false_accepts, far, side="right")) - 1 for far in self.fars]
        return [(1 - float(curve.false_rejects[point]), float(curve.thresholds[point])) for point in last]
