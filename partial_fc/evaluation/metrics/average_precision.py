"""Mean average precision over the whole ranking (mAP), and over its first R items (MAP@R, arXiv 2003.08505).

R is the number of gallery items of the query's class. The average precision is the sum of the precisions at the
positions of these items, divided by R; map_at_r adds only those at positions up to R.
"""

from collections.abc import Sequence

import numpy as np

from partial_fc.evaluation.ranking import Ranking

from .metric import QueryMetric


class AveragePrecision(QueryMetric):
    """mAP and MAP@R."""

    figures = ("map", "map_at_r")

    def values(self, result: Ranking) -> Sequence[np.ndarray]:
        """See QueryMetric."""
        counts, starts = result.counts[result.mated], result.starts
        number = np.arange(len(result.positions)) - np.repeat(starts, counts) + 1  # 1 .. R of each mate
        precisions = number / result.positions
        in_r = precisions * (result.positions <= np.repeat(counts, counts))
        return [np.add.reduceat(each, starts) / counts for each in (precisions, in_r)]
