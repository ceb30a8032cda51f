"""``report.html``: the results of a training on one self-contained page."""

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np

from partial_fc.evaluation.verification import tar_differs, too_few
from partial_fc.training.results import SetResult, TrainingResult
from partial_fc.training.run_folder import data_name
from partial_fc.training.tasks.pairs import PairVerification
from partial_fc.training.verifying import baseline_name
from partial_fc.utils.text import plural, printable

from . import drawing, formatting, pictures
from .charts import Chart, figure_name, training_charts
from .formatting import number, percent
from .markup import Content, facts, table, tag
from .style import STYLE

MAX_ROWS = 100  # verifications in the table of a set
NOISY = "Pale: all values with their extremes. Strong: mean of each hundredth of the axis."
Columns = Mapping[str, tuple[str, Callable[[Any], str]]]  # name -> field of a point, and its form
PAIRS: Columns = {
    "update": ("num_update", number),
    "accuracy": ("accuracy", partial(percent, digits=3)),
    "std": ("std", partial(percent, digits=3)),
    "TAR": ("tar_at_far", percent),
    "at FAR": ("far", "{:g}".format),
    "measured FAR": ("measured_far", partial(percent, digits=3)),
    "insightface's TAR": ("tar_interpolated", percent),
    "threshold": ("threshold", partial(number, digits=3)),
    "XNorm": ("xnorm", partial(number, digits=2)),
    "dimensions": ("dimensions", partial(number, digits=1)),
    "agreement": ("agreement", partial(number, digits=3)),
    "seconds": ("seconds", partial(number, digits=1)),
}
HARDEST = (
    "The pairs with the largest errors of the trained network, worst first. The number below a pair is the squared "
    "distance of its embeddings: 0 for equal directions, 4 for opposite ones."
)


def render(result: TrainingResult) -> str:
    """Returns the page as HTML5 without scripts, with a policy that forbids browsers to fetch anything.

    Raises:
        OSError, ValueError: A validation set cannot be read again.
    """
    sections = _sections(result)
    links = [tag("a", name, href=f"#{key}") for key, name, _ in sections]
    header = tag(
        "header",
        tag("p", "Training report", class_="kind"),
        tag("h1", result.title),
        tag("p", _lead(result), class_="lead"),
        tag("nav", links, aria_label="Sections"),
    )
    notices = [tag("li", line) for line in _notices(result)]
    content = [tag("section", tag("h2", name), content, id=key) for key, name, content in sections]
    main = tag("main", [tag("ul", notices, class_="notices")] if notices else (), content)
    footer = tag("footer", tag("p", "The same figures for programs: summary.json, next to this page."))
    return document(result.title, tag("body", header, main, footer))


def document(title: str, body: Element) -> str:
    """Returns a page of HTML5 with the style sheet of all reports."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),  # otherwise browsers request one from a server
        tag("title", title),
        tag("style", STYLE),
    )
    page = ElementTree.tostring(tag("html", head, body, lang="en"), encoding="unicode", method="html")
    return printable(f"<!doctype html>\n{page}\n")


def figures(drawn: Sequence[Chart]) -> Element:
    """Returns the charts with their titles, and legends where there are several lines."""
    return tag("div", [_figure(chart) for chart in drawn], class_="charts")


def _figure(chart: Chart) -> Element:
    names = [tag("li", _swatch(*drawing.look(line.look)), line.name) for line in chart.lines]
    legend = [tag("ul", names, class_="legend")] if len(names) > 1 else []
    note = [tag("p", NOISY, class_="soft")] if any(drawing.is_noisy(chart, line) for line in chart.lines) else []
    caption = tag("figcaption", tag("h3", chart.title), legend)
    return tag("figure", caption, drawing.svg(chart), note, class_="chart")


def _swatch(color: str, dashes: Any) -> Element:
    line = {"d": "M1 5H25", "stroke": color, "stroke-width": str(drawing.LINE_WIDTH), "stroke-linecap": "round"}
    if dashes != "solid":
        line["stroke-dasharray"] = " ".join(f"{drawing.LINE_WIDTH * part:.4g}" for part in dashes[1])
    return tag("svg", Element("path", line), viewBox="0 0 26 10", class_="swatch", aria_hidden="true")


def _lead(result: TrainingResult) -> str:
    settings, done, planned = result.settings, result.updates, result.settings["max_update"]
    lead = [
        f"{settings['network']} trained with {settings['loss']} on {data_name(settings)}",
        f"{done:,} updates" if done >= planned else f"{done:,} of {planned:,} updates so far",
        plural(result.ranks, "rank"),
        f"sample ratio {settings['sample_ratio']}",
        formatting.duration(result.seconds),
    ]
    return ", ".join(lead) + "."


def _notices(result: TrainingResult) -> list[str]:
    """Returns the warnings above the figures."""
    notices = [f"Not verified because the file does not exist: {path}" for path in result.missing]
    for name, found in result.sets.items():
        if isinstance(found.evaluation, PairVerification):
            few = too_few(int(np.sum(~found.evaluation.share.issame)), found.points[-1].far)
            notices += [f"{name}: {few}."] if few else []
    for name, problems in result.problems.items():
        notices += [f"{name}: {problem}." for problem in problems]
    if result.problems:
        notices.append(f"Suggestion: {result.suggestion}.")
    if result.skipped:
        notices.append(f"Skipped because of read errors: {plural(result.skipped, 'sample')}.")
    return notices


def _sections(result: TrainingResult) -> list[tuple[str, str, Content]]:
    """Returns (id, name, content) of the sections that are not empty."""
    drawn = training_charts(result)
    max_bytes = pictures.MAX_BYTES // max(len(result.sets), 1)
    shown = [(name, pictures.hardest(found, max_bytes)) for name, found in result.sets.items()]
    pairs = [(tag("h3", name), content) for name, content in shown if content]
    settings = [(name, formatting.setting(value)) for name, value in result.settings.items()]
    sections: list[tuple[str, str, list[Content]]] = [
        ("results", "Results", [_results(result)]),
        ("curves", "Curves", [figures(drawn)] if drawn else []),
        ("pairs", "Hardest pairs", [tag("p", HARDEST, class_="lead"), pairs] if pairs else []),
        ("verifications", "Verifications", [_verifications(name, found) for name, found in result.sets.items()]),
        ("settings", "Settings", [facts(settings, "columns mono")]),
        ("versions", "Versions", [facts(result.versions.items(), "columns mono")]),
    ]
    return [(key, name, content) for key, name, content in sections if content]


def _results(result: TrainingResult) -> Content:
    none = tag("p", "No validation set was verified; the setting val_targets selects them.", class_="soft")
    cards = tag("ul", [_card(name, found) for name, found in result.sets.items()], class_="cards")
    summary, sets = result.summary(), list(result.sets.values())
    first = _form(sets[0]) if sets else percent
    run = [
        ("final loss", number(summary["final_loss"], 4)),
        ("samples per second", number(summary["samples_per_second"], 1)),
        ("waiting for data", percent(result.waiting, 1)),
        ("updates", number(result.updates)),
        ("time", formatting.duration(result.seconds)),
        ("bad samples skipped", number(result.skipped)),
        *((baseline_name(name), first(value)) for name, value in result.baselines.items()),
    ]
    return [cards if result.sets else none, facts(run, "run")]


def _card(name: str, result: SetResult) -> Element:
    """Returns the figures of the trained network on a set."""
    evaluation, last = result.evaluation, result.points[-1]
    best = ("best", f"{_form(result)(result.best_value)} at update {result.best.num_update:,}")
    if not isinstance(evaluation, PairVerification):
        others = [(column, show(getattr(last, field))) for column, (field, show) in _columns(result).items()][2:-1]
        return tag("li", tag("h3", name), tag("p", _form(result)(result.value), class_="big"), facts([best, *others]))
    figures = [
        (f"TAR at FAR {last.far:g}", percent(last.tar_at_far)),
        ("measured FAR", percent(last.measured_far, 3)),
        best,
        ("XNorm", number(last.xnorm, 2)),
        ("dimensions", number(last.dimensions, 1)),
        ("train/eval agreement", number(last.agreement, 3)),
        ("pairs", number(len(evaluation.share.issame))),
    ]
    if tar_differs(last.tar_at_far, last.tar_interpolated):
        figures.insert(2, ("insightface's TAR", percent(last.tar_interpolated)))
    spread = tag("small", f"±{formatting.SPACE}{percent(last.std)}")
    return tag("li", tag("h3", name), tag("p", percent(last.accuracy), " ", spread, class_="big"), facts(figures))


def _columns(result: SetResult) -> Columns:
    """Returns the columns of the table of a set."""
    evaluation = result.evaluation
    if isinstance(evaluation, PairVerification):
        return PAIRS
    forms = {name: percent if name in evaluation.shares else partial(number, digits=4) for name in evaluation.figures}
    figures = {figure_name(name): (name, form) for name, form in forms.items()}
    return {"update": PAIRS["update"], **figures, "seconds": PAIRS["seconds"]}


def _form(result: SetResult) -> Callable[[float], str]:
    """Returns the form of the first figure."""
    return percent if result.evaluation.figures[0] in result.evaluation.shares else partial(number, digits=4)


def _verifications(name: str, result: SetResult) -> Element:
    """Returns the table of the last MAX_ROWS verifications of a set."""
    count = len(result.points)
    dropped = f", the last {MAX_ROWS} of {count:,} verifications" if count > MAX_ROWS else ""
    caption = tag("caption", name, dropped)
    shown = result.points[-MAX_ROWS:]
    columns = _columns(result)
    rows = [[show(getattr(point, field)) for field, show in columns.values()] for point in shown]
    return table(name, list(columns), rows, caption)
