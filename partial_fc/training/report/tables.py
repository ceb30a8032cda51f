"""Tables of the page: figures of each set and of the training, verifications, settings and versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from partial_fc.evaluation.verification import VerificationPoint

from . import formatting
from .content import Results, SetResult
from .markup import Markup, tag

MAX_ROWS = 100  # verifications in the table of a set
BASELINES = {"raw_pixels": "raw pixels", "untrained": "untrained network"}


def set_figures(result: SetResult) -> Markup:
    """Returns the figures of the trained network on a set."""
    pairs = ("pairs", f"{result.pairs:,}")
    if not result.points or not formatting.is_measured(result.points[-1].accuracy):
        return tag(
            "li", tag("h3", result.name), tag("p", formatting.NOT_MEASURED, class_="big none"), pairs_list([pairs])
        )
    last = result.points[-1]
    spread = f"±{formatting.SPACE}{formatting.percent(last.std)}"
    facts = [
        (f"TAR at FAR {last.far:g}", formatting.percent(last.tar_at_far)),
        ("best", _best(result)),
        ("XNorm", formatting.number(last.xnorm, 2)),
        ("dimensions", formatting.number(last.dimensions, 1)),
        ("mode agreement", formatting.number(last.agreement, 3)),
        pairs,
    ]
    big = tag("p", formatting.percent(last.accuracy), " ", tag("small", spread), class_="big")
    return tag("li", tag("h3", result.name), big, pairs_list(facts))


def _best(result: SetResult) -> str:
    measured = [point for point in result.points if formatting.is_measured(point.accuracy)]
    if not measured:
        return formatting.NOT_MEASURED
    trained = [point for point in measured if point.num_update]  # without the untrained network
    best = max(trained or measured, key=lambda point: point.accuracy)
    return f"{formatting.percent(best.accuracy)} at update {best.num_update:,}"


def run_figures(results: Results) -> Markup:
    """Returns the figures of the training."""
    summary = results.summary
    facts = [
        ("final loss", formatting.number(summary.get("final_loss"), 4)),
        ("images per second", formatting.number(summary.get("samples_per_second"), 1)),
        ("waiting for data", formatting.percent(summary.get("waiting_for_data"), 1)),
        ("updates", formatting.number(summary.get("updates"))),
        ("time", formatting.duration(summary.get("seconds"))),
        ("bad images skipped", formatting.number(summary.get("skipped_images"))),
    ]
    baselines = summary.get("baselines") or {}
    facts += [(BASELINES.get(name, name), formatting.percent(value)) for name, value in baselines.items()]
    return pairs_list(facts, class_="run")


def by_update(result: SetResult) -> Markup:
    """Returns the table of the last MAX_ROWS verifications of a set."""
    names = ("update", "accuracy", "std", "TAR", "at FAR", "threshold", "XNorm", "dimensions", "agreement", "seconds")
    points = list(result.points)[-MAX_ROWS:]
    rows = [tag("tr", [tag("td", cell) for cell in _cells(point)]) for point in points]
    dropped = len(result.points) - len(points)
    title = tag(
        "caption", result.name, f", the last {MAX_ROWS} of {len(result.points):,} verifications" if dropped else ""
    )
    head = tag("thead", tag("tr", [tag("th", name, scope="col") for name in names]))
    return tag(
        "div",
        tag("table", title, head, tag("tbody", rows)),
        class_="wide",
        tabindex=0,
        role="region",
        aria_label=result.name,
    )


def _cells(point: VerificationPoint) -> list[str]:
    return [
        f"{point.num_update:,}",
        formatting.percent(point.accuracy, 3),
        formatting.percent(point.std, 3),
        formatting.percent(point.tar_at_far),
        f"{point.far:g}",
        formatting.number(point.threshold, 3),
        formatting.number(point.xnorm, 2),
        formatting.number(point.dimensions, 1),
        formatting.number(point.agreement, 3),
        formatting.number(point.seconds, 1),
    ]


def settings(values: Mapping[str, Any]) -> Markup:
    """Returns the list of settings."""
    return pairs_list(((name, formatting.setting(value)) for name, value in values.items()), class_="columns mono")


def versions(values: Mapping[str, Any]) -> Markup:
    """Returns the list of software versions."""
    return pairs_list(((name, str(value)) for name, value in values.items()), class_="columns mono")


def pairs_list(pairs: Iterable[tuple[str, str]], **attributes: str) -> Markup:
    """Returns a list of names and values; empty if there are none."""
    lines = [
        tag("div", tag("dt", name), tag("dd", text, **({"class_": "none"} if text == formatting.NOT_MEASURED else {})))
        for name, text in pairs
    ]
    return tag("dl", lines, **attributes) if lines else Markup()
