"""``report.html``: the results of a training on one self-contained page."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from partial_fc.evaluation.verification import VerificationPoint
from partial_fc.utils.atomic_io import replace_file
from partial_fc.utils.text import plural

from . import drawing, formatting, pictures
from .charts import BASELINES, Chart, training_charts
from .content import Results, SetResult
from .formatting import number, percent
from .markup import Content, facts, table, tag
from .style import STYLE

MAX_ROWS = 100  # verifications in the table of a set
NOISY = "Pale: all values with their extremes. Strong: mean of each hundredth of the axis."
COLUMNS = (
    "update",
    "accuracy",
    "std",
    "TAR",
    "at FAR",
    "threshold",
    "XNorm",
    "dimensions",
    "agreement",
    "seconds",
)
HARDEST = (
    "The pairs with the largest errors of the trained network, worst first. The number below a pair is the squared "
    "distance of its embeddings: 0 for equal directions, 4 for opposite ones."
)


def write_page(path: str, results: Results) -> None:
    """Writes the page atomically.

    Raises:
        OSError: The file cannot be written.
    """
    # A path among the settings may contain bytes that are not UTF-8.
    replace_file(path, [render(results).encode("utf-8", "replace")])


def draw_curves(path: str, results: Results) -> None:
    """Draws accuracy and loss as ``curves.png``.

    Raises:
        OSError: The file cannot be written.
    """
    drawing.write_png(
        path, results.title, [chart for chart in training_charts(results) if chart.key in ("accuracy", "losses")]
    )


def render(results: Results) -> str:
    """Returns the page as HTML5 without scripts, with a policy that forbids browsers to fetch anything."""
    sections = _sections(results)
    links = [tag("a", name, href=f"#{key}") for key, name, _ in sections]
    header = tag(
        "header",
        tag("p", "Training report", class_="kind"),
        tag("h1", results.title),
        tag("p", _lead(results), class_="lead"),
        tag("nav", links, aria_label="Sections"),
    )
    notices = [tag("li", line) for line in _notices(results)]
    content = [tag("section", tag("h2", name), content, id=key) for key, name, content in sections]
    main = tag("main", [tag("ul", notices, class_="notices")] if notices else (), content)
    footer = tag("footer", tag("p", "The same figures for programs: summary.json, next to this page."))
    return document(results.title, tag("body", header, main, footer))


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
    return f"<!doctype html>\n{page}\n"


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


def _lead(results: Results) -> str:
    summary = results.summary
    lead = [
        f"{summary.get('network')} trained with {summary.get('loss')} on {summary.get('dataset')}",
        _progress(summary.get("updates"), results.settings.get("max_update")),
        f"{number(summary.get('ranks'))} ranks" if summary.get("ranks") != 1 else "1 rank",
        f"sample ratio {summary.get('sample_ratio')}",
        formatting.duration(summary.get("seconds")),
    ]
    return ", ".join(lead) + "."


def _progress(updates: Any, planned: Any) -> str:
    """Returns the number of updates, and how many there were to be if the training has not finished."""
    if updates is None or planned is None or updates >= planned:
        return f"{number(updates)} updates"
    return f"{number(updates)} of {number(planned)} updates so far"


def _notices(results: Results) -> list[str]:
    """Returns the warnings above the figures."""
    notices = [f"Not verified because the file does not exist: {path}" for path in results.missing]
    for name, problems in (results.summary.get("problems") or {}).items():
        notices += [f"{name}: {problem}." for problem in problems]
    if results.summary.get("suggestion"):
        notices.append(f"Suggestion: {results.summary['suggestion']}.")
    loss, skipped = results.summary.get("final_loss"), results.summary.get("skipped_images")
    if loss is not None and not formatting.is_measured(loss):
        notices.append(f"The final loss is {loss}: the training has diverged.")
    if formatting.is_measured(skipped) and skipped:
        notices.append(f"Skipped because of read errors: {plural(int(skipped), 'image')}.")
    return notices


def _sections(results: Results) -> list[tuple[str, str, Content]]:
    """Returns (id, name, content) of the sections that are not empty."""
    drawn = training_charts(results)
    max_bytes = pictures.MAX_BYTES // max(len(results.sets), 1)
    pairs = [(tag("h3", result.name), pictures.hardest(result, max_bytes)) for result in results.sets if result.hardest]
    settings = [(name, formatting.setting(value)) for name, value in results.settings.items()]
    versions = [(name, str(value)) for name, value in (results.summary.get("versions") or {}).items()]
    sections: list[tuple[str, str, list[Content]]] = [
        ("results", "Results", [_results(results)]),
        ("curves", "Curves", [figures(drawn)] if drawn else []),
        ("pairs", "Hardest pairs", [tag("p", HARDEST, class_="lead"), pairs] if pairs else []),
        ("verifications", "Verifications", [_verifications(result) for result in results.sets if result.points]),
        ("settings", "Settings", [facts(settings, "columns mono")] if settings else []),
        ("versions", "Versions", [facts(versions, "columns mono")] if versions else []),
    ]
    return [(key, name, content) for key, name, content in sections if content]


def _results(results: Results) -> Content:
    none = tag("p", "No validation set was verified; the setting val_targets selects them.", class_="soft")
    cards = tag("ul", [_card(result) for result in results.sets], class_="cards") if results.sets else none
    summary = results.summary
    baselines = (summary.get("baselines") or {}).items()
    run = [
        ("final loss", number(summary.get("final_loss"), 4)),
        ("images per second", number(summary.get("samples_per_second"), 1)),
        ("waiting for data", percent(summary.get("waiting_for_data"), 1)),
        ("updates", number(summary.get("updates"))),
        ("time", formatting.duration(summary.get("seconds"))),
        ("bad images skipped", number(summary.get("skipped_images"))),
        *((BASELINES.get(name, name), percent(value)) for name, value in baselines),
    ]
    return [cards, facts(run, "run")]


def _card(result: SetResult) -> Element:
    """Returns the figures of the trained network on a set."""
    pairs = ("pairs", f"{result.pairs:,}")
    if not result.points or not formatting.is_measured(result.points[-1].accuracy):
        none = tag("p", formatting.NOT_MEASURED, class_="big none")
        return tag("li", tag("h3", result.name), none, facts([pairs]))
    last = result.points[-1]
    measured = [point for point in result.points if formatting.is_measured(point.accuracy)]
    trained = [point for point in measured if point.num_update]  # without the untrained network
    best = max(trained or measured, key=lambda point: point.accuracy)
    figures = [
        (f"TAR at FAR {last.far:g}", percent(last.tar_at_far)),
        ("best", f"{percent(best.accuracy)} at update {best.num_update:,}"),
        ("XNorm", number(last.xnorm, 2)),
        ("dimensions", number(last.dimensions, 1)),
        ("train/eval agreement", number(last.agreement, 3)),
        pairs,
    ]
    spread = tag("small", f"±{formatting.SPACE}{percent(last.std)}")
    return tag(
        "li", tag("h3", result.name), tag("p", percent(last.accuracy), " ", spread, class_="big"), facts(figures)
    )


def _verifications(result: SetResult) -> Element:
    """Returns the table of the last MAX_ROWS verifications of a set."""
    points = list(result.points)[-MAX_ROWS:]
    dropped = f", the last {MAX_ROWS} of {len(result.points):,} verifications" if len(result.points) > MAX_ROWS else ""
    caption = tag("caption", result.name, dropped)
    return table(result.name, COLUMNS, [_cells(point) for point in points], caption)


def _cells(point: VerificationPoint) -> list[str]:
    return [
        f"{point.num_update:,}",
        percent(point.accuracy, 3),
        percent(point.std, 3),
        percent(point.tar_at_far),
        f"{point.far:g}",
        number(point.threshold, 3),
        number(point.xnorm, 2),
        number(point.dimensions, 1),
        number(point.agreement, 3),
        number(point.seconds, 1),
    ]
