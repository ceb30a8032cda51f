"""Draws a chart as inline SVG with a legend. The colors are in style.py, for light and dark mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .markup import Markup, tag
from .scales import Scale

WIDTH, HEIGHT = 440, 260
TOP, RIGHT, BOTTOM = 26, 24, 38  # margins for the names of the axes and the ticks
DIGIT_WIDTH = 7.6  # of tick labels on a phone, in units of the SVG
COLORS, DASHES = 8, 3
COLORS_PER_DASH = 3  # consecutive colors with the same dash pattern
NOISY = "Pale: all values with their extremes. Strong: mean of each hundredth of the axis."
MAX_DOTS = 40  # lines with more points have no dots
BUCKETS = 100  # of the width of a chart, for thinning
MAX_POINTS = 5 * BUCKETS  # of a line after thinning


class Series(NamedTuple):
    """A line of a chart.

    Attributes:
        name: Name in the legend.
        x: (N,) ascending.
        y: (N,); values that are not finite interrupt the line.
        look: Number of the color and dash pattern.
        steps: Whether y is constant until the next x.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    look: int = 0
    steps: bool = False


class Mark(NamedTuple):
    """A labeled straight line at ``value`` of the y axis, or of the x axis if ``upright``."""

    value: float
    text: str
    upright: bool = False


class Chart(NamedTuple):
    """A chart; ``key`` is its unique id on the page, ``description`` its content as text for screen readers."""

    key: str
    title: str
    description: str
    x_name: str
    y_name: str
    x: Scale
    y: Scale
    series: Sequence[Series]
    marks: Sequence[Mark] = ()


def figure(chart: Chart) -> Markup:
    """Returns the chart with its title and, if there are several lines, a legend."""
    names = [tag("li", _swatch(line.look), line.name) for line in chart.series]
    legend = [tag("ul", names, class_="legend")] if len(names) > 1 else []
    note = [tag("p", NOISY, class_="soft")] if any(_is_noisy(line) for line in chart.series) else []
    return tag("figure", tag("figcaption", tag("h3", chart.title), legend), draw(chart), note, class_="chart")


def draw(chart: Chart) -> Markup:
    """Returns the chart as SVG."""
    left = 9 + DIGIT_WIDTH * max((len(tick.text) for tick in chart.y.ticks), default=0)
    area = _Area(left, TOP, WIDTH - RIGHT - left, HEIGHT - TOP - BOTTOM)
    title, description = f"{chart.key}-title", f"{chart.key}-description"
    return tag(
        "svg",
        tag("title", chart.title, id=title),
        tag("desc", chart.description, id=description),
        _axes(chart, area),
        [_line(line, chart, area) for line in chart.series],
        [_mark(mark, chart, area) for mark in chart.marks],
        id=chart.key,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_labelledby=f"{title} {description}",
    )


class _Area(NamedTuple):
    """The plot area in units of the SVG."""

    left: float
    top: float
    width: float
    height: float

    def across(self, share: float) -> float:
        return round(self.left + float(share) * self.width, 1)

    def down(self, share: float) -> float:
        return round(self.top + (1 - float(share)) * self.height, 1)


def look(number: int) -> str:
    """Returns the CSS classes of color and dashes, which are distinct for COLORS * DASHES numbers."""
    rounds, color = divmod(number, COLORS)
    return f"c{color} d{(color // COLORS_PER_DASH + rounds) % DASHES}"


def _swatch(number: int) -> Markup:
    line = tag("path", class_=f"line {look(number)}", d="M1 5H25")
    return tag("svg", line, viewBox="0 0 26 10", class_="swatch", aria_hidden="true")


def _axes(chart: Chart, area: _Area) -> Markup:
    parts = []
    foot = area.top + area.height
    for tick, share in zip(chart.y.ticks, chart.y.place(np.array([tick.value for tick in chart.y.ticks]))):
        y = area.down(share)
        parts.append(tag("line", x1=area.left, x2=area.left + area.width, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", tick.text, x=area.left - 7, y=y + 4, text_anchor="end"))
    for tick, share in zip(chart.x.ticks, chart.x.place(np.array([tick.value for tick in chart.x.ticks]))):
        x = area.across(share)
        parts.append(tag("line", x1=x, x2=x, y1=foot, y2=foot + 4, class_="axis"))
        parts.append(tag("text", tick.text, x=x, y=foot + 17, text_anchor="middle"))
    parts.append(tag("line", x1=area.left, x2=area.left + area.width, y1=foot, y2=foot, class_="axis"))
    parts.append(tag("text", chart.y_name, x=2, y=12, class_="name"))
    parts.append(tag("text", chart.x_name, x=WIDTH - 2, y=HEIGHT - 4, text_anchor="end", class_="name"))
    return tag("g", parts, class_="axes")


def _mark(mark: Mark, chart: Chart, area: _Area) -> Markup:
    share = (chart.x if mark.upright else chart.y).place(np.array([mark.value]))[0]
    if mark.upright:
        x = area.across(share)
        line = tag("line", x1=x, x2=x, y1=area.top, y2=area.top + area.height)
        return tag("g", line, tag("text", mark.text, x=x + 5, y=area.top + area.height - 7), class_="mark")
    y = area.down(share)
    line = tag("line", x1=area.left, x2=area.left + area.width, y1=y, y2=y)
    text = tag("text", mark.text, x=area.left + area.width, y=y - 5, text_anchor="end")
    return tag("g", line, text, class_="mark")


def _line(line: Series, chart: Chart, area: _Area) -> Markup:
    across, down = chart.x.place(line.x), chart.y.place(line.y)
    kept = thin(across, down)
    noisy = _is_noisy(line)
    path = _path(across[kept], down[kept], line.steps, area)
    parts = [tag("path", class_=f"line {look(line.look)}" + " pale" * noisy, d=path)]
    if noisy:
        parts.append(tag("path", class_=f"line {look(line.look)}", d=_path(*means(across, down), False, area)))
    if len(line.x) <= MAX_DOTS and not line.steps:
        parts += [_dot(line, i, across[i], down[i], area) for i in np.flatnonzero(np.isfinite(down))]
    return tag("g", parts)


def _is_noisy(line: Series) -> bool:
    """Returns whether the line has too many points to distinguish; a ROC is monotonic and needs no mean."""
    return len(line.x) > MAX_POINTS and not line.steps


def _path(across: np.ndarray, down: np.ndarray, steps: bool, area: _Area) -> str:
    commands, pen_down = [], False
    for share, height in zip(across, down):
        if not np.isfinite(height):
            pen_down = False
            continue
        x, y = area.across(share), area.down(height)
        if pen_down:
            commands.append(f"H{x}V{y}" if steps else f"L{x} {y}")
        else:
            commands.append(f"M{x} {y}h0")  # h0 with round line caps shows a point between two gaps as a dot
        pen_down = True
    return "".join(commands)


def _dot(line: Series, index: int, across: float, down: float, area: _Area) -> Markup:
    tooltip = tag("title", f"{line.name}: {line.y[index]:,.6g} at {line.x[index]:,.6g}")
    dot = tag("circle", cx=area.across(across), cy=area.down(down), r=2.8, class_=f"dot {look(line.look)}")
    return tag("g", tooltip, dot)


def thin(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Selects the points of a curve that have to be drawn.

    The width is divided into buckets. Of each the first, last, lowest and highest point are kept, and one that is not
    finite, which is a gap: no extreme is lost, and the line enters and leaves a bucket at the same points (M4
    aggregation, Jugel et al., VLDB 2014).

    Args:
        x: (N,) finite, ascending.
        y: (N,).

    Returns:
        Ascending indices, at most MAX_POINTS.
    """
    if len(x) <= MAX_POINTS:
        return np.arange(len(x))
    kept: set[int] = set()
    for start, end in _buckets(x):
        kept.update(start + index for index in _extremes(y[start:end]))
    return np.array(sorted(kept))


def means(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (mean x, mean y) of the finite points of each bucket, at most BUCKETS points."""
    finite = np.isfinite(y)
    x, y = x[finite], y[finite]
    parts = [slice(start, end) for start, end in _buckets(x) if start < end]
    return np.array([x[part].mean() for part in parts]), np.array([y[part].mean() for part in parts])


def _buckets(x: np.ndarray) -> list[tuple[int, int]]:
    """Returns the index ranges of the buckets."""
    if not len(x):
        return []
    span = x[-1] - x[0]
    share = (x - x[0]) / span if span else np.zeros(len(x))
    bucket = np.minimum((share * BUCKETS).astype(np.int64), BUCKETS - 1)
    bounds = np.searchsorted(bucket, np.arange(BUCKETS + 1)).tolist()
    return list(zip(bounds[:-1], bounds[1:]))


def _extremes(y: np.ndarray) -> set[int]:
    finite = np.isfinite(y)
    points, gaps = np.flatnonzero(finite), np.flatnonzero(~finite)
    if not len(points):
        return set(gaps[:1].tolist())
    values = y[points]
    return {*points[[0, -1, values.argmin(), values.argmax()]].tolist(), *gaps[:1].tolist()}
