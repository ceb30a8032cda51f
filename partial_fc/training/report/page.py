"""``report.html``: the results of a training on one self-contained page."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from partial_fc.utils.atomic_io import replace_file
from partial_fc.utils.text import plural

from . import formatting, pictures, tables
from .charts import charts
from .content import Results
from .markup import Markup, join, tag
from .style import STYLE
from .svg import figure


def write_page(path: str, results: Results) -> None:
    """Writes the page atomically.

    Raises:
        OSError: The file cannot be written.
    """
    # A path among the settings may contain bytes that are not UTF-8.
    replace_file(path, [render(results).encode("utf-8", "replace")])


def render(results: Results) -> str:
    """Returns the page as HTML5 without scripts, with a policy that forbids browsers to fetch anything."""
    sections = _sections(results)
    body = tag(
        "body",
        _header(results, sections),
        tag("main", _notices(results), [tag("section", content, id=key) for key, _, content in sections]),
        tag("footer", tag("p", "The same figures for programs: summary.json, next to this page.")),
    )
    return document(results.title, body)


def document(title: str, body: Markup) -> str:
    """Returns a page of HTML5 with the style sheet of all reports."""
    return "<!doctype html>\n" + tag("html", _head(title), "\n", body, lang="en") + "\n"


def _head(title: str) -> Markup:
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),  # otherwise browsers request one from a server
        tag("title", title),
        tag("style", Markup(STYLE)),
    )


def _header(results: Results, sections: list[tuple[str, str, Markup]]) -> Markup:
    summary = results.summary
    facts = [
        f"{summary.get('network')} trained with {summary.get('loss')} on {summary.get('dataset')}",
        _progress(summary.get("updates"), results.settings.get("max_update")),
        f"{formatting.number(summary.get('ranks'))} ranks" if summary.get("ranks") != 1 else "1 rank",
        f"sample ratio {summary.get('sample_ratio')}",
        formatting.duration(summary.get("seconds")),
    ]
    links = [tag("a", name, href=f"#{key}") for key, name, _ in sections]
    return tag(
        "header",
        tag("p", "Training report", class_="kind"),
        tag("h1", results.title),
        tag("p", ", ".join(facts), ".", class_="lead"),
        tag("nav", links, aria_label="Sections"),
    )


def _progress(updates: Any, planned: Any) -> str:
    """Returns the number of updates, and how many there were to be if the training has not finished."""
    if updates is None or planned is None or updates >= planned:
        return f"{formatting.number(updates)} updates"
    return f"{formatting.number(updates)} of {formatting.number(planned)} updates so far"


def _notices(results: Results) -> Markup:
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
    return tag("ul", [tag("li", line) for line in notices], class_="notices") if notices else Markup()


def _sections(results: Results) -> list[tuple[str, str, Markup]]:
    """Returns (id, name, content) of the sections that are not empty."""
    drawn = [figure(chart) for chart in charts(results)]
    max_bytes = pictures.MAX_BYTES // max(len(results.sets), 1)
    hardest = [(result.name, pictures.hardest(result, max_bytes)) for result in results.sets]
    sections = [
        ("results", "Results", _results(results)),
        ("curves", "Curves", tag("div", drawn, class_="charts") if drawn else Markup()),
        ("pairs", "Hardest pairs", _pairs([(name, content) for name, content in hardest if content])),
        (
            "verifications",
            "Verifications",
            join([tables.by_update(result) for result in results.sets if result.points]),
        ),
        ("settings", "Settings", tables.settings(results.settings)),
        ("versions", "Versions", tables.versions(results.summary.get("versions") or {})),
    ]
    return [(key, name, join(tag("h2", name), content)) for key, name, content in sections if content]


def _results(results: Results) -> Markup:
    cards = [tables.set_figures(result) for result in results.sets]
    none = tag("p", "No validation set was verified; the setting val_targets selects them.", class_="soft")
    return join(tag("ul", cards, class_="cards") if cards else none, tables.run_figures(results))


def _pairs(sets: list[tuple[str, Markup]]) -> Markup:
    if not sets:
        return Markup()
    text = (
        "The pairs with the largest errors of the trained network, worst first. The number below a pair is the squared "
        "distance of its embeddings: 0 for equal directions, 4 for opposite ones."
    )
    return join(tag("p", text, class_="lead"), [join(tag("h3", name), content) for name, content in sets])
