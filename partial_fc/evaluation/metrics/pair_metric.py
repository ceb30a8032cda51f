"""Metrics of the error rates of pairs, see pair_counts.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partial_fc.evaluation.pair_counts import Curve, PairCounts, count_pairs

from .metric import Metric, Statistic


class PairMetric(Metric):
    """A metric of a curve of error rates. A subclass has ``figures`` and `points`."""

    source = staticmethod(count_pairs)
    higher_is_better = False

    def points(self, curve: Curve) -> Sequence[tuple[float, float]]:
        """Returns (figure, the threshold that belongs to it) for each of the figures."""
        raise NotImplementedError

    def statistic(self, result: PairCounts) -> tuple[Statistic, int]:
        """See Metric."""

        def figures(times: np.ndarray | None) -> Sequence[float]:
            curve = result.curve(times)
            if np.isnan(curve.false_rejects + curve.false_accepts).any():  # a draw without pairs of a kind
                return [np.nan] * len(self.figures)
            return [figure for figure, _ in self.points(curve)]

        return figures, result.units
