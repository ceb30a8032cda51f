"""``report.html``: the results of a training on one self-contained page."""

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np

from partial_fc.evaluation.verification import tar_differs, too_few
from partial_fc.training.results import SetResult, TrainingResult
from partial_fc.training.run_folder import data_name
from partial_fc.training.tasks import Evaluation
from partial_fc.training.tasks.pairs import PairVerification
from partial_fc.training.verifying import baseline_name
from partial_fc.utils.text import plural, printable

from . import drawing, pictures
from .charts import Chart, figure_name, training_charts
from .formatting import SPACE, duration, number, percent, setting
from .markup import Content, facts, flat, table, tag
from .style import STYLE

MAX_ROWS = 100  # verifications in the table of a set
NOISY = "Pale: all values with their extremes. Strong: the mean over each hundredth of the axis."
Format = Callable[[Any], str]
PAIR_COLUMNS: Mapping[str, tuple[str, Format]] = {  # column -> field of VerificationPoint, and its format
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
    "The pairs that the trained network gets most wrong, worst first. The number below a pair is the squared distance "
    "of its embeddings, from 0 for equal directions to 4 for opposite ones."
)


def render(result: TrainingResult) -> str:
    """Returns the page as HTML5 without scripts; its Content-Security-Policy forbids browsers from fetching anything.

    Raises:
        OSError, ValueError: A validation set cannot be read again.
    """
    max_bytes = pictures.MAX_BYTES // max(len(result.sets), 1)
    pairs = [
        (tag("h3", name), content)
        for name, set_result in result.sets.items()
        if (content := pictures.hardest(set_result, max_bytes))
    ]
    heads = {head.name: {**head.own, "weight": head.weight} for head in result.heads if head.name}
    of_heads = [(name, ", ".join(f"{k} {setting(v)}" for k, v in each.items())) for name, each in heads.items()]
    sections: list[tuple[str, str, Content]] = [
        ("results", "Results", _results(result)),
        ("curves", "Curves", figures(training_charts(result))),
        ("pairs", "Hardest pairs", [tag("p", HARDEST, class_="lead"), pairs] if pairs else []),
        ("verifications", "Verifications", [_verifications(*named) for named in result.sets.items()]),
        ("heads", "Heads", facts(of_heads, "columns mono") if of_heads else ()),
        ("settings", "Settings", _settings(result)),
        ("versions", "Versions", facts(result.versions.items(), "columns mono")),
    ]
    footer = tag("footer", tag("p", "The same figures for programs: summary.json, next to this page."))
    body = sectioned_body("Training report", result.title, sections, _lead(result), _notices(result), footer)
    return document(result.title, body)


def sectioned_body(
    kind: str,
    title: str,
    sections: Iterable[tuple[str, str, Content]],
    lead: str = "",
    notices: Sequence[str] = (),
    footer: Content = (),
) -> Element:
    """Returns the body of a page with links to its sections (id, name, content); empty sections are omitted."""
    sections = [(key, name, list(flat(content))) for key, name, content in sections]
    sections = [section for section in sections if section[2]]
    links = [tag("a", name, href=f"#{key}") for key, name, _ in sections]
    header = tag(
        "header",
        tag("p", kind, class_="kind"),
        tag("h1", title),
        tag("p", lead, class_="lead") if lead else (),
        tag("nav", links, aria_label="Sections"),
    )
    warnings = tag("ul", [tag("li", line) for line in notices], class_="notices") if notices else ()
    content = [tag("section", tag("h2", name), content, id=key) for key, name, content in sections]
    return tag("body", header, tag("main", warnings, content), footer)


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


def figures(charts: Sequence[Chart]) -> Content:
    """Returns the charts with their titles, and with legends where there are several lines; () without charts."""
    return tag("div", [_figure(chart) for chart in charts], class_="charts") if charts else ()


def _figure(chart: Chart) -> Element:
    names = [tag("li", _swatch(*drawing.line_style(line.style)), line.name) for line in chart.lines]
    legend = tag("ul", names, class_="legend") if len(names) > 1 else ()
    note = tag("p", NOISY, class_="soft") if any(drawing.is_noisy(chart, line) for line in chart.lines) else ()
    return tag("figure", tag("figcaption", tag("h3", chart.title), legend), drawing.svg(chart), note, class_="chart")


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
        duration(result.seconds),
    ]
    return ", ".join(lead) + "."


def _notices(result: TrainingResult) -> list[str]:
    notices = [f"Not verified because the file does not exist: {path}" for path in result.missing]
    for name, set_result in result.sets.items():
        if isinstance(set_result.evaluation, PairVerification):
            few = too_few(int(np.sum(~set_result.evaluation.share.issame)), set_result.points[-1].far)
            notices += [f"{name}: {few}."] if few else []
    for name, problems in result.problems.items():
        notices += [f"{name}: {problem}." for problem in problems]
    if result.problems:
        notices.append(f"Suggestion: {result.suggestion}.")
    if result.skipped:
        notices.append(f"Skipped because of read errors: {plural(result.skipped, 'sample')}.")
    return notices


def _results(result: TrainingResult) -> Content:
    none = tag("p", "No validation set was verified; the setting val_targets selects them.", class_="soft")
    cards = tag("ul", [_card(name, set_result) for name, set_result in result.sets.items()], class_="cards")
    summary = result.summary()
    evaluations = [set_result.evaluation for set_result in result.sets.values()]
    # Baselines belong to the first set.
    baseline_format = _format(evaluations[0], evaluations[0].figures[0]) if evaluations else percent
    rows = [
        ("final loss", number(summary["final_loss"], 4)),
        ("samples per second", number(summary["samples_per_second"], 1)),
        ("waiting for data", percent(result.waiting, 1)),
        ("updates", number(result.updates)),
        ("time", duration(result.seconds)),
        ("bad samples skipped", number(result.skipped)),
        *((baseline_name(name), baseline_format(value)) for name, value in result.baselines.items()),
    ]
    return [cards if result.sets else none, facts(rows, "run")]


def _settings(result: TrainingResult) -> Content:
    """Returns all settings, with those that have their default folded."""
    texts = {name: setting(value) for name, value in result.settings.items()}
    at_default = {name for name, value in result.defaults.items() if name in texts and result.settings[name] == value}
    changed, unchanged = (
        facts(((name, text) for name, text in texts.items() if (name in at_default) is folded), "columns mono")
        for folded in (False, True)
    )
    summary = tag("summary", f"{plural(len(at_default), 'setting')} at the default")
    return [changed, tag("details", summary, unchanged) if at_default else ()]


def _card(name: str, result: SetResult) -> Element:
    """Returns the figures of the last verification of a set."""
    evaluation, last, first_figure = result.evaluation, result.points[-1], result.evaluation.figures[0]
    show = _format(evaluation, first_figure)
    best = ("best", f"{show(result.best_value)} at update {result.best.num_update:,}")
    if isinstance(evaluation, PairVerification):
        headline: Content = [percent(last.accuracy), " ", tag("small", f"±{SPACE}{percent(last.std)}")]
        interpolated = ("insightface's TAR", percent(last.tar_interpolated))
        rows = [
            (f"TAR at FAR {last.far:g}", percent(last.tar_at_far)),
            ("measured FAR", percent(last.measured_far, 3)),
            *([interpolated] if tar_differs(last.tar_at_far, last.tar_interpolated) else []),
            best,
            ("XNorm", number(last.xnorm, 2)),
            ("dimensions", number(last.dimensions, 1)),
            ("train/eval agreement", number(last.agreement, 3)),
            ("pairs", number(len(evaluation.share.issame))),
        ]
    else:
        headline = show(result.value)
        others = evaluation.figures[1:]
        rows = [best, *((figure_name(each), _format(evaluation, each)(getattr(last, each))) for each in others)]
    return tag("li", tag("h3", name), tag("p", headline, class_="big"), facts(rows))


def _format(evaluation: Evaluation, figure: str) -> Format:
    return percent if figure in evaluation.shares else partial(number, digits=4)


def _verifications(name: str, result: SetResult) -> Element:
    """Returns the table of the last MAX_ROWS verifications of a set."""
    evaluation, count, columns = result.evaluation, len(result.points), PAIR_COLUMNS
    if not isinstance(evaluation, PairVerification):
        named = {figure_name(figure): (figure, _format(evaluation, figure)) for figure in evaluation.figures}
        columns = {"update": PAIR_COLUMNS["update"], **named, "seconds": PAIR_COLUMNS["seconds"]}
    rows = [[show(getattr(point, field)) for field, show in columns.values()] for point in result.points[-MAX_ROWS:]]
    omitted = f", the last {MAX_ROWS} of {count:,} verifications" if count > MAX_ROWS else ""
    return table(name, list(columns), rows, tag("caption", name, omitted))
