"""Error rates at thresholds that were chosen on another set, as in the use of a system.

far_NAME and frr_NAME are the false accept and false reject rates at the other set's threshold of the figure NAME.
act_dcf is the detection cost of scores that were calibrated on the other set.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from partial_fc.evaluation.calibration import calibrate
from partial_fc.evaluation.items import ALONE, EmbeddedItems, Workers
from partial_fc.evaluation.pair_counts import Curve, PairCounts, count_pairs

from .detection_cost import DetectionCost
from .metric import PairMetric


class Transferred(PairMetric):
    """Error rates at thresholds of another set.

    Args:
        development: the other set.
        metrics: metrics to choose thresholds by; the first DetectionCost also calibrates.
        workers: the ranks.

    Attributes:
        thresholds: threshold of each figure, by name.
        calibration: of the other set's scores; None without a DetectionCost.
    """

    def __init__(self, development: EmbeddedItems, metrics: Sequence[PairMetric], workers: Workers = ALONE):
        curve = count_pairs(development, workers).curve()
        self.thresholds = {
            name: threshold for metric in metrics for name, (_, threshold) in zip(metric.figures, metric.points(curve))
        }
        self.figures = [f"{rate}_{name}" for name in self.thresholds for rate in ("frr", "far")]
        self.calibration, self._cost = None, None
        if cost := next((metric for metric in metrics if isinstance(metric, DetectionCost)), None):
            self.calibration = calibrate(partial(_scored_pairs, development, workers), cost.p_target, workers)
            self._cost = cost, self.calibration.threshold(math.log(cost.accept / cost.miss))
            self.figures.append("act_dcf")

    def source(self, items: EmbeddedItems, workers: Workers) -> PairCounts:  # type: ignore[override]
        """Counts the pairs also at the thresholds."""
        return count_pairs(items, workers, [*self.thresholds.values(), *(self._cost or ())[1:]])

    def points(self, curve: Curve) -> Sequence[tuple[float, float]]:
        """See PairMetric."""
        points = [(float(rate), each) for each in self.thresholds.values() for rate in _rates(curve, each)]
        if self._cost:
            cost, threshold = self._cost
            points.append((float(cost.cost(*_rates(curve, threshold))), threshold))
        return points


def _scored_pairs(items: EmbeddedItems, workers: Workers) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for block in items.pair_blocks(workers):
        compared = block.scores > -np.inf
        yield block.scores[compared], block.genuine[compared]


def _rates(curve: Curve, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the false reject and the false accept rate at a threshold of the curve."""
    point = int(np.searchsorted(-curve.thresholds, -np.float32(threshold), side="right")) - 1
    return curve.false_rejects[point], curve.false_accepts[point]
