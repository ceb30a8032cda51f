"""The data of the charts; drawing.py draws them.

Shapes: P pairs, T steps of a ROC curve.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from partial_fc.training.results import SetResult, TrainingResult
from partial_fc.training.tasks.evaluation import UNTRAINED
from partial_fc.training.tasks.pairs import PairVerification
from partial_fc.training.verifying import baseline_name

ACCURACY_UNIT = "mean of ten folds, %"
Points = Sequence[tuple[int, float | None]] | np.ndarray  # (update, value)


class Line(NamedTuple):
    """A line of a chart."""

    name: str  # shown in the legend
    x: np.ndarray  # (N,) float64, ascending
    y: np.ndarray  # (N,) float64; NaN interrupts the line
    style: int  # selects the color and the dash pattern


class Chart(NamedTuple):
    """A chart."""

    key: str  # unique id on the page
    title: str
    y_name: str  # quantity and unit
    lines: Sequence[Line]  # each with at least one finite value
    from_zero: bool = False  # whether the y axis always starts at 0
    top: float = math.inf  # upper bound of the y axis
    marks: Mapping[str, float] = {}  # reference lines by name: a value of y, or of x in a ROC
    roc: bool = False  # whether x is the FAR on a log scale, and y the TAR, a step function
    x_name: str = "update"  # unless ``roc``

    def description(self) -> str:
        """Returns a text alternative for screen readers."""
        lines = [f"{line.name}: {self._tars(line) if self.roc else self._course(line)}" for line in self.lines]
        return f"{self.title}, {self.y_name}: {'; '.join(lines)}."

    def _course(self, line: Line) -> str:
        measured = np.flatnonzero(np.isfinite(line.y))
        ends = (f"{line.y[i]:,.6g} at {self.x_name} {line.x[i]:,.0f}" for i in measured[[0, -1]])
        low, high = line.y[measured].min(), line.y[measured].max()
        return f"{', '.join(ends)}; lowest {low:,.6g}, highest {high:,.6g}"

    def _tars(self, line: Line) -> str:
        """Lists the TAR at FAR 0 and at each power of ten that the number of pairs can resolve."""
        resolved = line.x[line.x > 0].min(initial=1.0)
        fars = [0.0, *(far for far in (1e-4, 1e-3, 1e-2, 1e-1) if far >= resolved)]
        steps = np.searchsorted(line.x, fars, side="right") - 1
        return ", ".join(f"TAR {line.y[step]:.2f} % at FAR {far:g}" for far, step in zip(fars, steps))


def training_charts(result: TrainingResult) -> list[Chart]:
    """Returns the charts of everything that the training has measured."""
    pairs, fars = {}, set()
    for name, set_result in result.sets.items():
        if isinstance(set_result.evaluation, PairVerification):
            assert set_result.evaluation.last, "verified in this process"
            pairs[name] = (set_result.evaluation.last.distance, set_result.evaluation.last.issame)
            fars.add(set_result.points[-1].far)
    return [
        *_first_figures(result),
        *roc_charts("ROC of the last verification", pairs, sorted(fars)),
        *curves({"": result.series}),
        *over_updates("head-losses", "Parts of the loss", "loss", result.head_losses, percent=False),
    ]


def _first_figures(result: TrainingResult) -> list[Chart]:
    """Returns one chart per distinct first figure. Baselines belong to the first set, so only its chart shows them."""
    groups: dict[str, dict[str, SetResult]] = {}
    for name, set_result in result.sets.items():
        groups.setdefault(set_result.evaluation.figures[0], {})[name] = set_result
    charts = []
    baselines = {baseline_name(name): value for name, value in result.baselines.items() if name != UNTRAINED}
    for figure, sets in groups.items():
        percent = all(figure in set_result.evaluation.shares for set_result in sets.values())
        points = {name: [(p.num_update, getattr(p, figure)) for p in sets[name].points] for name in sets}
        title, unit = figure_name(figure), "%" if percent else ""
        if all(isinstance(set_result.evaluation, PairVerification) for set_result in sets.values()):
            title, unit = "Verification accuracy", ACCURACY_UNIT
        marks = {name: value * (100 if percent else 1) for name, value in baselines.items()}
        charts += over_updates(figure, title, unit, points, percent, marks=marks)
        baselines = {}
    return charts


def curves(runs: Mapping[str, Mapping[str, Points]]) -> list[Chart]:
    """Returns the charts of log lines: training -> name in SERIES -> Points."""

    def chart(series: str, title: str, y_name: str, percent: bool = False, from_zero: bool = True) -> list[Chart]:
        points = {name or title: run[series] for name, run in runs.items()}
        return over_updates(series, title, y_name, points, percent, from_zero=from_zero)

    return [
        *chart("losses", "Loss", "cross-entropy", from_zero=False),
        *chart("learning_rates", "Learning rate", "of the backbone"),
        *chart("speeds", "Speed", "samples per second, all ranks"),
        *chart("waiting", "Waiting for data", "% of the time", percent=True),
    ]


def figure_name(figure: str) -> str:
    """Returns the display name of a figure."""
    return figure.replace("_", " ")


def over_updates(
    key: str, title: str, y_name: str, points_by_name: Mapping[str, Points], percent: bool, **options: Any
) -> list[Chart]:
    """Returns a chart of values, or of shares in ``percent``; an empty list if nothing was measured."""
    factor, top = (100.0, 100.0) if percent else (1.0, math.inf)
    lines = []
    for style, (name, points) in enumerate(points_by_name.items()):
        x, y = np.array(points, np.float64).reshape(-1, 2).T  # None (not measured) becomes NaN
        if np.isfinite(y).any():
            lines.append(Line(name, x, factor * y, style))
    return [Chart(key, title, y_name, lines, top=top, **options)] if lines else []


def roc_charts(title: str, pairs: Mapping[str, tuple[np.ndarray, np.ndarray]], fars: Sequence[float]) -> list[Chart]:
    """Returns the ROC chart of sets, each with distances and labels (P,); an empty list without sets."""
    lines = []
    for style, (name, (distance, issame)) in enumerate(pairs.items()):
        far, tar = roc_curve(distance, issame)
        first = np.searchsorted(far, 0.0, side="right") - 1  # the highest TAR at FAR 0
        lines.append(Line(name, far[first:], 100 * tar[first:], style))
    marks = {f"FAR {far:g}": far for far in fars}
    return [Chart("roc", title, "true accept rate (TAR), %", lines, top=100, marks=marks, roc=True)] if lines else []


def roc_curve(distance: np.ndarray, issame: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Computes the ROC of P finite distances of same and different pairs, with one step per distinct distance.

    Returns:
        FAR (T,) and TAR (T,) float64, ascending from (0, 0) to (1, 1). The TAR at a FAR of f is the TAR of the last
        step with a FAR of at most f.
    """
    thresholds = np.unique(distance)  # no threshold separates equal distances
    far, tar = (
        np.append(0.0, np.searchsorted(np.sort(distance[kind]), thresholds, side="right") / kind.sum())
        for kind in (~issame, issame)
    )
    return far, tar
