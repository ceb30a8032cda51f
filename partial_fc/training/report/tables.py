"""The figures of the page: of each set, of the training, by update, settings and versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from partial_fc.evaluation.verification import VerificationPoint

from . import wording
from .markup import Markup, tag
from .results import Results, SetResult

ROWS = 100  # verifications of a set that its table has
UNTRAINED = {"raw_pixels": "raw pixels alone", "untrained": "untrained network"}  # the trainer's baselines


def set_figures(result: SetResult) -> Markup:
    """What a set says of the trained network."""
    pairs = ("pairs", f"{result.pairs:,}")
    if not result.points or not wording.is_measured(result.points[-1].accuracy):
        return tag("li", tag("h3", result.name), tag("p", wording.NOT_MEASURED, class_="big none"), pairs_list([pairs]))
    last = result.points[-1]
    spread = f"±{wording.SPACE}{wording.percent(last.std)}"
    facts = [
        (f"TAR at FAR {last.far:g}", wording.percent(last.tar_at_far)),
        ("best", _best(result)),
        ("XNorm", wording.number(last.xnorm, 2)),
        ("dimensions", wording.number(last.dimensions, 1)),
        ("mode agreement", wording.number(last.agreement, 3)),
        pairs,
    ]
    big = tag("p", wording.percent(last.accuracy), " ", tag("small", spread), class_="big")
    return tag("li", tag("h3", result.name), big, pairs_list(facts))


def _best(result: SetResult) -> str:
    there = [point for point in result.points if wording.is_measured(point.accuracy)]
    if not there:
        return wording.NOT_MEASURED
    trained = [point for point in there if point.num_update]  # not what the untrained network gave
    best = max(trained or there, key=lambda point: point.accuracy)
    return f"{wording.percent(best.accuracy)} at update {best.num_update:,}"


def run_figures(results: Results) -> Markup:
    """What the training came to and what it cost."""
    summary = results.summary
    facts = [
        ("final loss", wording.number(summary.get("final_loss"), 4)),
        ("images a second", wording.number(summary.get("samples_per_second"), 1)),
        ("waiting for data", wording.percent(summary.get("waiting_for_data"), 1)),
        ("updates", wording.number(summary.get("updates"))),
        ("time", wording.duration(summary.get("seconds"))),
        ("bad images skipped", wording.number(summary.get("skipped_images"))),
    ]
    baselines = summary.get("baselines") or {}
    facts += [(UNTRAINED.get(name, name), wording.percent(value)) for name, value in baselines.items()]
    return pairs_list(facts, class_="run")


def by_update(result: SetResult) -> Markup:
    """Every verification of a set, the last ROWS of them."""
    names = ("update", "accuracy", "std", "TAR", "at FAR", "threshold", "XNorm", "dimensions", "agreement", "seconds")
    points = list(result.points)[-ROWS:]
    rows = [tag("tr", [tag("td", cell) for cell in _cells(point)]) for point in points]
    dropped = len(result.points) - len(points)
    title = tag("caption", result.name, f", the last {ROWS} of {len(result.points):,} verifications" if dropped else "")
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
        wording.percent(point.accuracy, 3),
        wording.percent(point.std, 3),
        wording.percent(point.tar_at_far),
        f"{point.far:g}",
        wording.number(point.threshold, 3),
        wording.number(point.xnorm, 2),
        wording.number(point.dimensions, 1),
        wording.number(point.agreement, 3),
        wording.number(point.seconds, 1),
    ]


def settings(values: Mapping[str, Any]) -> Markup:
    """Every setting by its name."""
    return pairs_list(((name, wording.setting(value)) for name, value in values.items()), class_="columns mono")


def versions(values: Mapping[str, Any]) -> Markup:
    """What the figures depend on."""
    return pairs_list(((name, str(value)) for name, value in values.items()), class_="columns mono")


def pairs_list(pairs: Iterable[tuple[str, str]], **attributes: str) -> Markup:
    """Names and what they are, a line each; nothing where there are none."""
    lines = [
        tag("div", tag("dt", name), tag("dd", text, **({"class_": "none"} if text == wording.NOT_MEASURED else {})))
        for name, text in pairs
    ]
    return tag("dl", lines, **attributes) if lines else Markup()
