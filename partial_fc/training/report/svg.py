"""A chart as inline SVG and its legend: no script, no colours of its own (style.py has them, for light and dark)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .markup import Markup, tag
from .scales import Scale
from .thinning import MOST, means, thin

WIDTH, HEIGHT = 440, 260
TOP, RIGHT, BOTTOM = 26, 24, 38  # around the curves: names of the axes and ticks
LETTER = 7.6  # units that a digit of a tick is wide on a phone
COLOURS, DASHES = 8, 3
ALIKE = 3  # colours, of which lines of one kind of dash are
NOISY = "Pale: the values, with every extreme. Strong: the mean of each hundredth."
DOTS = 40  # the most points of a line that are marked singly


class Series(NamedTuple):
    """A line through x (N,), ascending, and y (N,), broken where y is not finite. The same `look` is the same colour
    in every chart. `steps`: y is held until the next x."""

    name: str
    x: np.ndarray
    y: np.ndarray
    look: int = 0
    steps: bool = False


class Mark(NamedTuple):
    """A straight line with a text: at `value` of the x axis where it is `upright`, else of the y axis."""

    value: float
    text: str
    upright: bool = False


class Chart(NamedTuple):
    """`key` is an id that no other chart of the page has, `told` says in words what is to be seen."""

    key: str
    title: str
    told: str
    x_name: str
    y_name: str
    x: Scale
    y: Scale
    series: Sequence[Series]
    marks: Sequence[Mark] = ()


def figure(chart: Chart) -> Markup:
    """The chart with its title and, where there is more than one line, a legend."""
    names = [tag("li", _swatch(line.look), line.name) for line in chart.series]
    legend = [tag("ul", names, class_="legend")] if len(names) > 1 else []
    note = [tag("p", NOISY, class_="soft")] if any(_is_noisy(line) for line in chart.series) else []
    return tag("figure", tag("figcaption", tag("h3", chart.title), legend), draw(chart), note, class_="chart")


def draw(chart: Chart) -> Markup:
    """The chart alone."""
    left = 9 + LETTER * max((len(tick.text) for tick in chart.y.ticks), default=0)
    area = _Area(left, TOP, WIDTH - RIGHT - left, HEIGHT - TOP - BOTTOM)
    title, told = f"{chart.key}-title", f"{chart.key}-told"
    return tag(
        "svg",
        tag("title", chart.title, id=title),
        tag("desc", chart.told, id=told),
        _axes(chart, area),
        [_line(line, chart, area) for line in chart.series],
        [_mark(mark, chart, area) for mark in chart.marks],
        id=chart.key,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_labelledby=f"{title} {told}",
    )


class _Area(NamedTuple):
    """Where the curves are, in units of the SVG."""

    left: float
    top: float
    width: float
    height: float

    def across(self, share: float) -> float:
        return round(self.left + float(share) * self.width, 1)

    def down(self, share: float) -> float:
        return round(self.top + (1 - float(share)) * self.height, 1)


def look(number: int) -> str:
    """Classes of colour and dashes, of which no two are the same up to COLOURS * DASHES."""
    rounds, colour = divmod(number, COLOURS)
    return f"c{colour} d{(colour // ALIKE + rounds) % DASHES}"


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
    if len(line.x) <= DOTS and not line.steps:
        parts += [_dot(line, i, across[i], down[i], area) for i in np.flatnonzero(np.isfinite(down))]
    return tag("g", parts)


def _is_noisy(line: Series) -> bool:
    """Whether it has more points than can be told apart; a ROC, which rises, needs no mean."""
    return len(line.x) > MOST and not line.steps


def _path(across: np.ndarray, down: np.ndarray, steps: bool, area: _Area) -> str:
    words, pen = [], False
    for share, height in zip(across, down):
        if not np.isfinite(height):
            pen = False
            continue
        x, y = area.across(share), area.down(height)
        if pen:
            words.append(f"H{x}V{y}" if steps else f"L{x} {y}")
        else:
            words.append(f"M{x} {y}h0")  # a point between two gaps is a dot, by the round ends of lines
        pen = True
    return "".join(words)


def _dot(line: Series, index: int, across: float, down: float, area: _Area) -> Markup:
    told = tag("title", f"{line.name}: {line.y[index]:,.6g} at {line.x[index]:,.6g}")
    dot = tag("circle", cx=area.across(across), cy=area.down(down), r=2.8, class_=f"dot {look(line.look)}")
    return tag("g", told, dot)
