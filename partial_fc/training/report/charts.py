"""Charts of the pages and their text descriptions for screen readers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from . import formatting
from .content import Results
from .scales import Scale, decades, linear
from .svg import Chart, Mark, Series
from .tables import BASELINES


class Curve(NamedTuple):
    """A chart over the updates that the report of a training and a comparison have alike.

    Attributes:
        key, title, y_name: See Chart.
        source: Name of its points in Results and in curves.json.
        digits: Of the numbers in the description.
        factor: Of the values.
        floor: See `over_updates`.
    """

    key: str
    source: str
    title: str
    y_name: str
    digits: int
    factor: float = 1.0
    floor: float | None = 0.0

    def line(self, name: str, entries: Sequence[tuple[int, float | None]] | np.ndarray, look: int = 0) -> Series:
        """Returns the line of a training through its (update, value), with gaps for unmeasured values."""
        return _series(name, entries, self.factor)._replace(look=look)

    def chart(self, lines: Sequence[Series]) -> Chart | None:
        """Returns the chart; None if nothing was measured."""
        return over_updates(self.key, self.title, self.y_name, lines, self.digits, self.floor)


CURVE_CHARTS = (
    Curve("loss", "losses", "Loss", "cross-entropy", 4, floor=None),
    Curve("rate", "learning_rates", "Learning rate", "of the backbone", 6),
    Curve("speed", "speeds", "Speed", "images per second, all ranks", 1),
    Curve("waiting", "waiting", "Waiting for data", "% of the time", 2, factor=100.0),
)


def charts(results: Results) -> list[Chart]:
    """Returns the charts with data: accuracy, ROC, and those of CURVE_CHARTS."""
    drawn = [curve.chart([curve.line(curve.title, getattr(results, curve.source))]) for curve in CURVE_CHARTS]
    return [chart for chart in (_accuracy(results), _roc(results), *drawn) if chart is not None]


def _series(name: str, entries: Sequence[tuple[int, float | None]] | np.ndarray, factor: float = 1) -> Series:
    """Returns a line through (update, factor * value) with gaps for unmeasured values."""
    values = factor * np.array([formatting.finite(value) for _, value in entries])
    return Series(name, np.array([update for update, _ in entries], np.float64), values)


def over_updates(
    key: str, title: str, y_name: str, lines: Sequence[Series], digits: int, floor: float | None = None
) -> Chart | None:
    """Returns a chart over the updates; None if nothing was measured.

    Args:
        key, title, y_name: See Chart.
        lines: Those without a finite value are left out.
        digits: Of the numbers in the description.
        floor: The axis begins here; without it, it begins at 0 if that takes little space.
    """
    lines = [line for line in lines if np.isfinite(line.y).any()]
    if not lines:
        return None
    values = np.concatenate([line.y[np.isfinite(line.y)] for line in lines])
    low, high = values.min(), values.max()
    courses = [(f"{line.name}: " if len(lines) > 1 else "") + _course(line, digits) for line in lines]
    from_zero = [0.0] if floor is not None or 0 <= low < high / 2 else []
    scale = linear([low, high, *from_zero], -math.inf if floor is None else floor)
    description = f"{y_name}: {'; '.join(courses)}."
    return Chart(key, title, description, "update", y_name, _updates(lines), scale, lines)


def _course(line: Series, digits: int) -> str:
    """Describes a line: its first and last, lowest and highest value."""
    measured = np.flatnonzero(np.isfinite(line.y))
    values, updates = line.y[measured], line.x[measured]
    return (
        f"{values[0]:,.{digits}f} at update {updates[0]:,.0f}, {values[-1]:,.{digits}f} at update "
        f"{updates[-1]:,.0f}; lowest {values.min():,.{digits}f}, highest {values.max():,.{digits}f}"
    )


def _updates(lines: Sequence[Series]) -> Scale:
    last = max(float(line.x[-1]) for line in lines)
    return linear([0.0, last], 0.0, max(last, 1.0))


def _accuracy(results: Results) -> Chart | None:
    lines = []
    for number, result in enumerate(results.sets):
        line = _series(result.name, [(point.num_update, point.accuracy) for point in result.points], 100)
        if np.isfinite(line.y).any():
            lines.append(line._replace(look=number))
    if not lines:
        return None
    baselines = results.summary.get("baselines") or {}
    marks = [
        Mark(100 * value, BASELINES[name])
        for name, value in baselines.items()
        if name == "raw_pixels" and formatting.is_measured(value)
    ]
    values = np.concatenate([line.y[np.isfinite(line.y)] for line in lines])
    scale = linear([values.min(), values.max(), *(mark.value for mark in marks)], 0.0, 100.0)
    description = "; ".join(f"{line.name}: {_accuracies(line)}" for line in lines) + "."
    return Chart(
        "accuracy",
        "Verification accuracy",
        description,
        "update",
        "%, mean of ten folds",
        _updates(lines),
        scale,
        lines,
        marks,
    )


def _accuracies(line: Series) -> str:
    values = line.y[np.isfinite(line.y)]
    return f"first {values[0]:.2f} %, last {values[-1]:.2f} %, best {values.max():.2f} %"


def _roc(results: Results) -> Chart | None:
    """Returns TAR over FAR as a step function, beginning with the TAR at FAR 0."""
    lines = []
    for number, result in enumerate(results.sets):
        far, tar = (np.asarray(shares, np.float64) for shares in result.roc)
        if len(far):
            first = max(int(np.searchsorted(far, 0.0, side="right")) - 1, 0)
            lines.append(Series(result.name, far[first:], 100 * tar[first:], number, steps=True))
    if not lines:
        return None
    # Begins at half of the smallest FAR, to the left of which the log axis shows the step at FAR 0.
    scale = decades(min(float(line.x[line.x > 0].min(initial=1.0)) for line in lines) / 2)
    values = np.concatenate([line.y for line in lines])
    fars = {point.far for result in results.sets for point in result.points[-1:]}
    marks = [Mark(far, f"FAR {far:g}", upright=True) for far in sorted(fars) if scale.low < far < 1]
    description = "; ".join(f"{line.name}: {_tars(line)}" for line in lines) + "."
    return Chart(
        "roc",
        "ROC of the last verification",
        description,
        "false accept rate (FAR)",
        "true accept rate (TAR), %",
        scale,
        linear([values.min(), values.max()], 0.0, 100.0),
        lines,
        marks,
    )


def _tars(line: Series) -> str:
    """Lists the TAR at FAR 0 and at powers of ten."""
    smallest = line.x[line.x > 0].min(initial=1.0)
    shown = [0.0, *(far for far in (1e-4, 1e-3, 1e-2, 1e-1) if far >= smallest)]
    steps = np.searchsorted(line.x, shown, side="right") - 1
    return ", ".join(f"TAR {line.y[step]:.2f} % at FAR {far:g}" for far, step in zip(shown, steps))
