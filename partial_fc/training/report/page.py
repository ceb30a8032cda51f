"""`report.html`: a training on one page that needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib

from partial_fc.checkpoint import replace_file
from partial_fc.utils.text import plural

from . import pictures, tables, wording
from .charts import charts
from .markup import Markup, join, tag
from .results import Results
from .style import STYLE
from .svg import figure


def write_page(path: str, results: Results) -> None:
    """Writes the page, whole or not at all.

    Raises:
        OSError: it could not be written.
    """
    # A path among the settings may hold bytes that are no UTF-8.
    replace_file(path, [render(results).encode("utf-8", "replace")])


def render(results: Results) -> str:
    """The page as HTML5: no scripts, and a policy that lets a browser fetch nothing."""
    sections = _sections(results)
    body = tag(
        "body",
        _header(results, sections),
        tag("main", _notices(results), [tag("section", content, id=key) for key, _, content in sections]),
        tag("footer", tag("p", "The same figures for programs: summary.json, beside this page.")),
    )
    return "<!doctype html>\n" + tag("html", _head(results.title), "\n", body, lang="en") + "\n"


def _head(title: str) -> Markup:
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),  # else a server is asked for one
        tag("title", title),
        tag("style", Markup(STYLE)),
    )


def _header(results: Results, sections: list[tuple[str, str, Markup]]) -> Markup:
    summary = results.summary
    told = [
        f"{summary.get('network')} trained with {summary.get('loss')} on {summary.get('dataset')}",
        f"{wording.number(summary.get('updates'))} updates",
        f"{wording.number(summary.get('ranks'))} ranks" if summary.get("ranks") != 1 else "1 rank",
        f"sample ratio {summary.get('sample_ratio')}",
        wording.duration(summary.get("seconds")),
    ]
    links = [tag("a", name, href=f"#{key}") for key, name, _ in sections]
    return tag(
        "header",
        tag("p", "Training report", class_="kind"),
        tag("h1", results.title),
        tag("p", ", ".join(told), ".", class_="lead"),
        tag("nav", links, aria_label="Sections"),
    )


def _notices(results: Results) -> Markup:
    """What a reader must know before the figures."""
    notices = [f"Not verified, because it was not there: {path}" for path in results.missing]
    for name, problems in (results.summary.get("problems") or {}).items():
        notices += [f"{name}: {problem}." for problem in problems]
    if results.summary.get("suggestion"):
        notices.append(f"What to change: {results.summary['suggestion']}.")
    loss, skipped = results.summary.get("final_loss"), results.summary.get("skipped_images")
    if loss is not None and not wording.is_measured(loss):
        notices.append(f"The final loss is {loss}: the training has diverged.")
    if wording.is_measured(skipped) and skipped:
        notices.append(f"{plural(int(skipped), 'image')} could not be read and took no part.")
    return tag("ul", [tag("li", line) for line in notices], class_="notices") if notices else Markup()


def _sections(results: Results) -> list[tuple[str, str, Markup]]:
    """(id, name, content) of those that have something to show."""
    drawn = [figure(chart) for chart in charts(results)]
    room = pictures.ROOM // max(len(results.sets), 1)
    hardest = [(result.name, pictures.hardest(result, room)) for result in results.sets]
    sections = [
        ("results", "Results", _results(results)),
        ("curves", "Curves", tag("div", drawn, class_="charts") if drawn else Markup()),
        ("pairs", "Hardest pairs", _pairs([(name, content) for name, content in hardest if content])),
        ("verifications", "Every verification", join([tables.by_update(one) for one in results.sets if one.points])),
        ("settings", "Settings", tables.settings(results.settings)),
        ("versions", "Versions", tables.versions(results.summary.get("versions") or {})),
    ]
    return [(key, name, join(tag("h2", name), content)) for key, name, content in sections if content]


def _results(results: Results) -> Markup:
    cards = [tables.set_figures(result) for result in results.sets]
    none = tag("p", "No validation set was verified: the setting val_targets names them.", class_="soft")
    return join(tag("ul", cards, class_="cards") if cards else none, tables.run_figures(results))


def _pairs(sets: list[tuple[str, Markup]]) -> Markup:
    if not sets:
        return Markup()
    told = (
        "The pairs on which the trained network is most wrong, worst first. The number below a pair is the squared "
        "distance of its two embeddings: 0 for the same direction, 4 for opposite ones."
    )
    return join(tag("p", told, class_="lead"), [join(tag("h3", name), content) for name, content in sets])
