"""Which charts the page has, and what they say to those who do not see them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from . import wording
from .results import Results
from .scales import Scale, decades, linear
from .svg import Chart, Mark, Series
from .tables import UNTRAINED


def charts(results: Results) -> list[Chart]:
    """Those that have something to show: accuracy, ROC, loss, speed, waiting."""
    losses = _series("loss", results.losses)
    speeds = _series("images a second", results.speeds)
    waiting = _series("waiting for data", results.waiting, 100)
    drawn = [
        _accuracy(results),
        _roc(results),
        _over_updates("loss", "Loss", "cross-entropy", losses, 4),
        _over_updates("speed", "Speed", "images a second, all ranks", speeds, 1, floor=0.0),
        _over_updates("waiting", "Waiting for data", "% of the time", waiting, 2, floor=0.0),
    ]
    return [chart for chart in drawn if chart is not None]


def _series(name: str, entries: Sequence[tuple[int, float | None]], times: float = 1) -> Series:
    """A line through (update, value), with gaps for what was not measured."""
    values = times * np.array([wording.finite(value) for _, value in entries])
    return Series(name, np.array([update for update, _ in entries], np.float64), values)


def _over_updates(
    key: str, title: str, y_name: str, line: Series, digits: int, floor: float | None = None
) -> Chart | None:
    """One line; the axis begins at 0 where that is asked for by `floor`, or costs little room."""
    there = np.flatnonzero(np.isfinite(line.y))
    if not len(there):
        return None
    values = line.y[there]
    low, high, last = values.min(), values.max(), values[-1]
    told = (
        f"{y_name}: {values[0]:,.{digits}f} at update {line.x[there[0]]:,.0f}, {last:,.{digits}f} at update "
        f"{line.x[there[-1]]:,.0f}; lowest {low:,.{digits}f}, highest {high:,.{digits}f}."
    )
    from_zero = [0.0] if floor is not None or 0 <= low < high / 2 else []
    scale = linear([low, high, *from_zero], -math.inf if floor is None else floor)
    return Chart(key, title, told, "update", y_name, _updates([line]), scale, [line])


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
        Mark(100 * value, UNTRAINED[name])
        for name, value in baselines.items()
        if name == "raw_pixels" and wording.is_measured(value)
    ]
    values = np.concatenate([line.y[np.isfinite(line.y)] for line in lines])
    scale = linear([values.min(), values.max(), *(mark.value for mark in marks)], 0.0, 100.0)
    told = "; ".join(f"{line.name}: {_ends(line)}" for line in lines) + "."
    return Chart(
        "accuracy",
        "Verification accuracy",
        told,
        "update",
        "%, mean of ten folds",
        _updates(lines),
        scale,
        lines,
        marks,
    )


def _ends(line: Series) -> str:
    there = line.y[np.isfinite(line.y)]
    return f"{there[0]:.2f} % at first, {there[-1]:.2f} % at the end, {there.max():.2f} % at best"


def _roc(results: Results) -> Chart | None:
    """TAR by FAR, from the TAR where nobody different is accepted; each step lasts to the next one."""
    lines = []
    for number, result in enumerate(results.sets):
        far, tar = (np.asarray(shares, np.float64) for shares in result.roc)
        if len(far):
            first = max(int(np.searchsorted(far, 0.0, side="right")) - 1, 0)
            lines.append(Series(result.name, far[first:], 100 * tar[first:], number, steps=True))
    if not lines:
        return None
    # Half of the smallest, so that the step of a FAR of 0, which no log axis has, is seen before it.
    scale = decades(min(float(line.x[line.x > 0].min(initial=1.0)) for line in lines) / 2)
    values = np.concatenate([line.y for line in lines])
    fars = {point.far for result in results.sets for point in result.points[-1:]}
    marks = [Mark(far, f"FAR {far:g}", upright=True) for far in sorted(fars) if scale.low < far < 1]
    told = "; ".join(f"{line.name}: {_at_some(line)}" for line in lines) + "."
    return Chart(
        "roc",
        "ROC at the end",
        told,
        "false accept rate (FAR)",
        "true accept rate (TAR), %",
        scale,
        linear([values.min(), values.max()], 0.0, 100.0),
        lines,
        marks,
    )


def _at_some(line: Series) -> str:
    """The TAR at some FARs, in words."""
    smallest = line.x[line.x > 0].min(initial=1.0)
    shown = [0.0, *(far for far in (1e-4, 1e-3, 1e-2, 1e-1) if far >= smallest)]
    steps = np.searchsorted(line.x, shown, side="right") - 1
    return ", ".join(f"TAR {line.y[step]:.2f} % at FAR {far:g}" for far, step in zip(shown, steps))
