"""Draws charts with matplotlib: as SVG in the pages, and as ``curves.png``.

The colors are the ones of the light page; rules in style.py replace them on the dark page.
"""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree

import numpy as np

from partial_fc.utils.atomic_io import replacing
from partial_fc.utils.text import one_line

from .charts import Chart, Line
from .style import LINES, PAPER, RULE, SOFT

WIDTH, HEIGHT = 440, 260  # of an SVG, in points
TOP, RIGHT, BOTTOM = 26, 24, 38  # margins for axis names and ticks
DIGIT_WIDTH = 7.6  # of tick labels on a phone
TICK = "{x:,.10g}"  # without the rounding errors of tick positions
DASHES: tuple[Any, ...] = ("solid", (0, (4, 2.2)), (0, (0.8, 2.2)))  # in line widths
COLORS_PER_DASH = 3  # consecutive colors that share a dash pattern
LINE_WIDTH = 1.8
MAX_DOTS = 40  # a line with more points has dots only where gaps isolate a point
MAX_POINTS = 500  # a line with more points is drawn pale, with its mean
BUCKETS = 100  # intervals of the x axis, for the mean
MATPLOTLIB = {
    "axes.autolimit_mode": "round_numbers",
    "axes.xmargin": 0,
    "axes.ymargin": 0,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.edgecolor": SOFT,
    "axes.linewidth": 1,
    "axes.labelcolor": SOFT,
    "axes.titlecolor": SOFT,
    "axes.titlesize": "medium",
    "axes.titlepad": 10,
    "font.size": 11.5,
    "grid.color": RULE,
    "lines.solid_capstyle": "round",
    "lines.dash_capstyle": "round",
    "path.simplify_threshold": 0.5,  # points; bounds the size of a noisy SVG
    "svg.fonttype": "none",  # text, in the font of the page
    "text.color": SOFT,
    "text.parse_math": False,  # dollar signs in the name of a set or a folder
    "xtick.bottom": False,
    "xtick.color": SOFT,
    "xtick.major.pad": 6,
    "ytick.color": SOFT,
    "ytick.left": False,
}


def svg(chart: Chart) -> ElementTree.Element:
    """Returns the chart as an ``svg`` element for a page, with tooltips on its dots."""
    with styled_figure(chart.key, figsize=(WIDTH / 72, HEIGHT / 72)) as figure:
        axes = figure.add_axes((0, 0, 1, 1))
        tooltips = draw(axes, chart)
        left = 9 + DIGIT_WIDTH * max(len(label.get_text()) for label in axes.get_yticklabels())
        axes.set_position((left / WIDTH, BOTTOM / HEIGHT, 1 - (left + RIGHT) / WIDTH, 1 - (TOP + BOTTOM) / HEIGHT))
        figure.patch.set_visible(False)
        axes.patch.set_visible(False)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    drawn = _for_page(ElementTree.fromstring(file.getvalue()))
    for dot, text in zip(drawn.iter("use"), tooltips):
        ElementTree.SubElement(dot, "title").text = text
    drawn.attrib.clear()
    drawn.attrib.update(
        {"id": chart.key, "viewBox": f"0 0 {WIDTH} {HEIGHT}", "role": "img", "aria-label": chart.description()}
    )
    return drawn


def write_png(path: str, title: str, charts: Sequence[Chart]) -> None:
    """Writes the charts side by side under a title.

    Raises:
        OSError: The file cannot be written.
    """
    with styled_figure("", figsize=(12, 4.2)) as figure:
        figure.suptitle(one_line(title), parse_math=False)
        figure.subplots_adjust(left=0.05, right=0.97, bottom=0.14, top=0.84, wspace=0.14)
        for axes, chart in zip(figure.subplots(1, max(len(charts), 1), squeeze=False)[0], charts):
            draw(axes, chart)
            axes.set_title(f"{chart.title}: {chart.y_name}", loc="left")
            if len(chart.lines) > 1:
                axes.legend(frameon=False)
        with replacing(path) as file:
            figure.savefig(file, dpi=120, format="png")


def line_style(number: int) -> tuple[str, Any]:
    """Returns the color and the dash pattern of a line; the first 24 combinations differ."""
    rounds, color = divmod(number, len(LINES))
    return LINES[color], DASHES[(color // COLORS_PER_DASH + rounds) % len(DASHES)]


def is_noisy(chart: Chart, line: Line) -> bool:
    """Returns whether the line has too many points to tell apart; a ROC is monotonic and needs no mean."""
    return len(line.x) > MAX_POINTS and not chart.roc


@contextmanager
def styled_figure(salt: str, **options: Any) -> Iterator[Any]:
    """Yields a figure in the style of the report, independent of any matplotlibrc; ``salt`` seeds the ids of an SVG."""
    import matplotlib  # takes a third of a second
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**MATPLOTLIB, "svg.hashsalt": salt})
        yield Figure(**options)


def draw(axes: Any, chart: Chart) -> list[str]:
    """Draws the chart; returns the tooltips of its dots in drawing order."""
    # The log axis starts at half of the smallest FAR above 0, so that the step at FAR 0 is visible at its left end.
    start = min(float(line.x[line.x > 0].min(initial=1.0)) for line in chart.lines) / 2 if chart.roc else 0.0
    tooltips = [text for line in chart.lines for text in _draw_line(axes, chart, line, start)]
    mark = {"color": SOFT, "linestyle": (0, (2, 3)), "linewidth": 1, "dash_capstyle": "butt"}
    label = {"textcoords": "offset points", "fontsize": 11}
    for name, value in chart.marks.items():
        if not chart.roc:
            axes.axhline(value, **mark)
            axes.annotate(name, (1, value), (0, 4), xycoords=axes.get_yaxis_transform(), ha="right", **label)
        elif start < value < 1:
            axes.axvline(value, **mark)
            axes.annotate(name, (value, 0), (5, 6), xycoords=axes.get_xaxis_transform(), **label)
    if chart.roc:
        axes.set_xscale("log")
        axes.set_xlim(start, 1)
        axes.minorticks_off()
        axes.xaxis.set_major_formatter("{x:g}")
    else:
        axes.set_xlim(0, max(1.0, *(line.x[-1] for line in chart.lines)))
        axes.locator_params(axis="x", nbins=4, integer=True)
        axes.xaxis.set_major_formatter(TICK)
    values = np.concatenate([line.y[np.isfinite(line.y)] for line in chart.lines])
    if chart.from_zero or 0 <= values.min() < values.max() / 2:
        axes.update_datalim([(start, 0)])
        axes.autoscale_view(scalex=False)
    axes.locator_params(axis="y", nbins=5, steps=[1, 2, 2.5, 5, 10])
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, 0.0) if values.min() >= 0 else low, min(high, chart.top))
    axes.yaxis.set_major_formatter(TICK)
    axes.set_title(chart.y_name, loc="left")
    axes.set_xlabel("false accept rate (FAR)" if chart.roc else chart.x_name, loc="right")
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    return tooltips


def _draw_line(axes: Any, chart: Chart, line: Line, start: float) -> list[str]:
    color, dashes = line_style(line.style)
    x, style = np.maximum(line.x, start), {"color": color, "linestyle": dashes, "clip_on": False}
    if is_noisy(chart, line):
        axes.plot(x, line.y, linewidth=1, alpha=0.4, **style)
        axes.plot(*means(x, line.y), linewidth=LINE_WIDTH, label=one_line(line.name), **style)
        return []
    drawstyle = "steps-post" if chart.roc else "default"
    axes.plot(x, line.y, linewidth=LINE_WIDTH, label=one_line(line.name), drawstyle=drawstyle, **style)
    if chart.roc:
        return []
    finite = np.isfinite(line.y)
    # A point between two gaps is on no line, so only a dot shows it.
    isolated = finite & ~np.append(finite[1:], False) & ~np.append(False, finite[:-1])
    dots = np.flatnonzero(finite if len(x) <= MAX_DOTS else isolated)
    axes.plot(x[dots], line.y[dots], "o", markersize=5.6, markeredgecolor=PAPER, color=color, clip_on=False)
    return [f"{line.name}: {line.y[dot]:,.6g} at {x[dot]:,.6g}" for dot in dots]


def means(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean x and mean y of the finite points in each nonempty hundredth of the x axis."""
    finite = np.isfinite(y)
    bucket = np.minimum(BUCKETS * x / max(x[-1], 1.0), BUCKETS - 1).astype(np.int64)[finite]
    count = np.bincount(bucket)
    sums = (np.bincount(bucket, values[finite])[count > 0] for values in (x, y))
    x_mean, y_mean = (total / count[count > 0] for total in sums)
    return x_mean, y_mean


def _for_page(drawn: ElementTree.Element) -> ElementTree.Element:
    """Turns matplotlib's SVG into HTML: attributes replace styles, which the policy of the page forbids."""
    drawn.remove(drawn[0])  # a style sheet
    for element in drawn.iter():
        element.tag, element.tail = element.tag.rpartition("}")[2], None
        attributes = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
        element.attrib.clear()
        if element.tag == "path" and "id" in attributes:
            # The shape of dots, which ``use`` elements refer to and color. The salt makes the id unique on the page.
            element.set("id", attributes["id"])
        else:
            style = dict(pair.split(": ", 1) for pair in attributes.get("style", "").split("; ") if pair)
            # Text takes the font of the page.
            element.attrib.update({name: value for name, value in style.items() if not name.startswith("font")})
        for name in ("d", "x", "y", "href"):
            if name in attributes:
                rounded = re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.4g}", attributes[name])
                element.set(name, " ".join(rounded.split()))
    return drawn
