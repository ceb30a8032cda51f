"""What the charts show; drawing.py draws them.

Shapes: P pairs, T steps of a ROC.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from partial_fc.training.results import SetResult, TrainingResult
from partial_fc.training.tasks.evaluation import UNTRAINED
from partial_fc.training.tasks.pairs import PairVerification
from partial_fc.training.verifying import baseline_name

Points = Sequence[tuple[int, float | None]] | np.ndarray  # (update, value)


class Line(NamedTuple):
    """A line of a chart."""

    name: str  # name in the legend
    x: np.ndarray  # (N,) float64, ascending
    y: np.ndarray  # (N,) float64; NaN interrupts the line
    look: int  # number of the color and dash pattern


class Chart(NamedTuple):
    """A chart."""

    key: str  # unique id on the page
    title: str  # what is shown
    y_name: str  # quantity and unit
    lines: Sequence[Line]  # each with a finite value
    from_zero: bool = False  # whether the y axis begins at 0 in any case
    top: float = math.inf  # the y axis ends here or below
    marks: Mapping[str, float] = {}  # name -> value of a straight line: of y, in a ROC of x
    roc: bool = False  # whether x is the FAR, logarithmic, and y the TAR, a step function
    x_name: str = "update"  # what x is otherwise

    def description(self) -> str:
        """Returns the content as text for screen readers."""
        describe = _tars if self.roc else partial(_course, self.x_name)
        return f"{self.title}, {self.y_name}: {'; '.join(f'{line.name}: {describe(line)}' for line in self.lines)}."


def training_charts(result: TrainingResult) -> list[Chart]:
    """Returns the charts of a training for which something was measured."""
    return [
        *_first_figures(result),
        *_roc(result),
        *curves({"": result.series}),
    ]


def curves(runs: Mapping[str, Mapping[str, Points]]) -> list[Chart]:
    """Returns the charts of the log lines of trainings by name, each with its Points by the names of SERIES."""

    def chart(source: str, title: str, y_name: str, factor: float = 1.0, from_zero: bool = True) -> list[Chart]:
        points = {name or title: run[source] for name, run in runs.items()}
        return over_updates(source, title, y_name, points, factor, from_zero=from_zero)

    return [
        *chart("losses", "Loss", "cross-entropy", from_zero=False),
        *chart("learning_rates", "Learning rate", "of the backbone"),
        *chart("speeds", "Speed", "samples per second, all ranks"),
        *chart("waiting", "Waiting for data", "% of the time", 100.0),
    ]


def accuracy(key: str, title: str, points: Mapping[str, Points], **options: Any) -> list[Chart]:
    """Returns the chart of verification accuracies by name; nothing if none was measured."""
    return over_updates(key, title, "mean of ten folds, %", points, 100.0, top=100.0, **options)


def _first_figures(result: TrainingResult) -> list[Chart]:
    """Returns a chart of each first figure, with the sets that have it; the baselines are those of the first set."""
    sets: dict[str, dict[str, SetResult]] = {}
    for name, found in result.sets.items():
        sets.setdefault(found.evaluation.figures[0], {})[name] = found
    charts = []
    for number, (figure, group) in enumerate(sets.items()):
        share = all(figure in found.evaluation.shares for found in group.values())
        points = {name: [(p.num_update, getattr(p, figure)) for p in found.points] for name, found in group.items()}
        baselines = {} if number else {name: value for name, value in result.baselines.items() if name != UNTRAINED}
        marks = {baseline_name(name): value * (100 if share else 1) for name, value in baselines.items()}
        if all(isinstance(found.evaluation, PairVerification) for found in group.values()):
            charts += accuracy(figure, "Verification accuracy", points, marks=marks)
        elif share:
            charts += over_updates(figure, figure_name(figure), "%", points, 100.0, top=100.0, marks=marks)
        else:
            charts += over_updates(figure, figure_name(figure), "", points, 1.0, marks=marks)
    return charts


def figure_name(figure: str) -> str:
    """Returns the name of a figure for people."""
    return figure.replace("_", " ")


def over_updates(
    key: str, title: str, y_name: str, named: Mapping[str, Points], factor: float, **options: Any
) -> list[Chart]:
    """Returns the chart of values, times ``factor``, by name; nothing if none was measured."""
    lines = []
    for look, (name, points) in enumerate(named.items()):
        x, y = np.array(points, np.float64).reshape(-1, 2).T  # None, for what was not measured, becomes NaN
        if np.isfinite(y).any():
            lines.append(Line(name, x, factor * y, look))
    return [Chart(key, title, y_name, lines, **options)] if lines else []


def _roc(result: TrainingResult) -> list[Chart]:
    pairs, fars = {}, set()
    for name, found in result.sets.items():
        if isinstance(found.evaluation, PairVerification):
            assert found.evaluation.last, "verified in this process"
            pairs[name] = (found.evaluation.last.distance, found.evaluation.last.issame)
            fars.add(found.points[-1].far)
    return roc_charts("ROC of the last verification", pairs, sorted(fars))


def roc_charts(title: str, pairs: Mapping[str, tuple[np.ndarray, np.ndarray]], fars: Sequence[float]) -> list[Chart]:
    """Returns the chart of the ROC of sets by name, each its (P,) distances and kinds; nothing without a set."""
    lines = []
    for look, (name, found) in enumerate(pairs.items()):
        far, tar = roc_curve(*found)
        first = np.searchsorted(far, 0.0, side="right") - 1  # with the TAR at FAR 0
        lines.append(Line(name, far[first:], 100 * tar[first:], look))
    marks = {f"FAR {far:g}": far for far in fars}
    return [Chart("roc", title, "true accept rate (TAR), %", lines, top=100, marks=marks, roc=True)] if lines else []


def roc_curve(distance: np.ndarray, issame: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Computes the ROC of P finite distances of pairs of both kinds, with one step per distinct distance.

    Returns:
        FAR (T,) and TAR (T,) float64, ascending from (0, 0) to (1, 1). The TAR at FAR f is that of the last step whose
        FAR is at most f.
    """
    order = np.argsort(distance, kind="stable")
    ascending, same = distance[order], issame[order]
    # No threshold separates equal distances: only the last of them ends a step.
    ends = np.flatnonzero(np.append(ascending[1:] > ascending[:-1], True))
    far, tar = (np.append(0.0, np.cumsum(kind)[ends] / kind.sum()) for kind in (~same, same))
    return far, tar


def _course(x_name: str, line: Line) -> str:
    at = np.flatnonzero(np.isfinite(line.y))
    first, last = (f"{line.y[i]:,.6g} at {x_name} {line.x[i]:,.0f}" for i in at[[0, -1]])
    return f"{first}, {last}; lowest {line.y[at].min():,.6g}, highest {line.y[at].max():,.6g}"


def _tars(line: Line) -> str:
    """Lists the TAR at FAR 0 and at the powers of ten that the pairs resolve."""
    shown = [0.0, *(far for far in (1e-4, 1e-3, 1e-2, 1e-1) if far >= line.x[line.x > 0].min(initial=1.0))]
    steps = np.searchsorted(line.x, shown, side="right") - 1
    return ", ".join(f"TAR {line.y[step]:.2f} % at FAR {far:g}" for far, step in zip(shown, steps))
