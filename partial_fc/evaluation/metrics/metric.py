"""The interface of a metric, and figures with 95 % confidence intervals by bootstrap over classes.

Shapes: Q queries, F figures, U units of the bootstrap, which are classes or groups of classes.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from partial_fc.evaluation.items import EmbeddedItems, Workers
from partial_fc.evaluation.pair_counts import Curve, PairCounts, count_pairs
from partial_fc.evaluation.ranking import rank
from partial_fc.utils.config import SettingsError
from partial_fc.utils.options import check_options

DRAWS = 1000
Statistic = Callable[[np.ndarray | None], Sequence[float]]


class Figure(NamedTuple):
    """A figure and its 95 % interval, see `bootstrap`."""

    value: float
    low: float
    high: float


class Metric:
    """A metric of embeddings with labels. A subclass has ``figures``, ``source`` and `statistic`.

    Attributes:
        figures: Names of the figures, which are identifiers.
        source: Function of (items, workers) that computes what `statistic` needs; metrics with one source share it.
        higher_is_better: Whether higher figures are better.
    """

    figures: Sequence[str]
    source: Callable[[EmbeddedItems, Workers], Any]
    higher_is_better = True

    def statistic(self, result: Any) -> tuple[Statistic, int]:
        """Prepares the figures.

        Args:
            result: what ``source`` returned.

        Returns:
            A function that returns the figures (F,), given how often each unit occurs, (U,), or None for once; and U.
        """
        raise NotImplementedError


class QueryMetric(Metric):
    """A mean over queries. A subclass has ``figures`` and `values`."""

    source = staticmethod(rank)

    def values(self, result: Any) -> Sequence[np.ndarray]:
        """Returns for each figure the values (Q,) of the queries in ``result.query_classes``."""
        raise NotImplementedError

    def statistic(self, result: Any) -> tuple[Statistic, int]:
        """See Metric."""
        values = np.stack(self.values(result)).astype(np.float64)
        _, unit_of, sizes = np.unique(result.query_classes, return_inverse=True, return_counts=True)
        sums = np.stack([np.bincount(unit_of, row) for row in values])

        def means(times: np.ndarray | None) -> Sequence[float]:
            if times is None:
                return values.mean(axis=1)
            return sums @ times / (sizes @ times)

        return means, len(sizes)


class PairMetric(Metric):
    """A metric of error rates by threshold. A subclass has ``figures`` and `points`."""

    source = staticmethod(count_pairs)
    higher_is_better = False

    def points(self, curve: Curve) -> Sequence[tuple[float, float]]:
        """Returns (value, threshold) of each figure."""
        raise NotImplementedError

    def statistic(self, result: PairCounts) -> tuple[Statistic, int]:
        """See Metric."""

        def figures(times: np.ndarray | None) -> Sequence[float]:
            curve = result.curve(times)
            if np.isnan(curve.false_rejects + curve.false_accepts).any():  # a draw without pairs of a kind
                return [np.nan] * len(self.figures)
            return [figure for figure, _ in self.points(curve)]

        return figures, result.units


def name_of(figure: str, value: float) -> str:
    """Returns the name of a figure at a rank or rate, such as tar_at_far_0_001 for 0.001."""
    number = str(value) if isinstance(value, int) else f"{value:g}"  # ranks from a million on need all digits
    return f"{figure}_{number}".replace(".", "_").replace("-", "_")


def numbers(name: str, value: Any, kind: type = float) -> tuple[Any, ...]:
    """Returns the numbers of an option, which is one number or a sequence of different ones.

    Raises:
        SettingsError: A number is missing, has the name of another, is out of bounds, or is not whole for the kind int.
    """
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    check_options("metrics", {name: values})
    names = {name_of("", each) for each in values}
    if not values or len(names) < len(values) or any(kind(each) != each for each in values):
        whole = "whole " if kind is int else ""
        raise SettingsError(f"{name} is {value!r}, but must be one or several different {whole}numbers")
    return tuple(map(kind, values))


def bootstrap(statistic: Statistic, values: np.ndarray, units: int, draws: int) -> np.ndarray:
    """Returns the 95 % intervals of figures (2, F), by draws of U units with replacement; NaN for U < 3.

    An interval has the quantiles of the draws, shifted so that their mean is the figure: a draw has fewer different
    classes, which raises NMI, for example. Draws without a value, such as draws without impostor pairs, are left out;
    two units would have a single draw with a value. All metrics with the same number of units have the same draws.

    Args:
        statistic, units: see `Metric.statistic`.
        values: (F,) the figures.
        draws: number of draws.
    """
    if draws == 0 or units < 3:
        return np.full((2, len(values)), np.nan)
    random = np.random.Generator(np.random.PCG64(0))
    drawn = np.empty((draws, len(values)))
    with np.errstate(invalid="ignore"):
        for row in drawn:
            row[:] = statistic(np.bincount(random.integers(units, size=units), minlength=units))
    quantiles: np.ndarray = np.nanpercentile(drawn, [2.5, 97.5], axis=0) + values - np.nanmean(drawn, axis=0)
    return np.clip(quantiles, np.minimum(np.nanmin(drawn, axis=0), 0), np.maximum(np.nanmax(drawn, axis=0), 1))
