"""Compares trainings: results, settings that differ, and curves on one page.

Prints the tables, and writes a page for any browser. A training is given by its output folder. It may still run, or may
have been killed: its figures are those of its last verification.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from partial_fc.utils.cli import add_force
from partial_fc.utils.staging import staged_files
from partial_fc.utils.tables import format_table

from . import formatting
from .charts import CURVE_CHARTS, over_updates
from .curves_json import Run, read_runs
from .markup import Markup, join, tag
from .page import document
from .svg import Chart, Series, figure

EXAMPLE = "models/small-arcface-demo models/small-cosface-demo --out comparison.html"
Table = Sequence[tuple[str, Sequence[str]]]  # (name of a row, a cell for each training)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="output folder of a training; at least two")
    parser.add_argument("--out", default="comparison.html", help="the page (default: comparison.html)")
    add_force(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    if len(set(map(os.path.realpath, args.runs))) < max(2, len(args.runs)):
        raise ValueError("give the output folders of two trainings or more, each once")
    folder, name = os.path.split(args.out)
    with staged_files(folder, [name], args.force) as stage:
        runs = read_runs(args.runs)
        with open(os.path.join(stage, name), "w", encoding="utf-8", errors="replace") as file:
            file.write(render(runs))
    names = ("", *(run.name for run in runs))
    for table in (results(runs), differing(runs)):
        if table:
            print("\n".join(format_table([names, *((name, *cells) for name, cells in table)])), end="\n\n")
    print(f"{args.out}: the curves")
    return 0


def results(runs: Sequence[Run]) -> Table:
    """Returns the figures of each training."""
    rows: list[tuple[str, Sequence[str]]] = [
        (name, [show(run.summary) for run in runs]) for name, show in _FIGURES.items()
    ]
    for name in _sets(runs):
        points = [[p for p in run.sets.get(name, []) if formatting.is_measured(p["accuracy"])] for run in runs]
        rows.append((f"{name}: accuracy", [formatting.percent(p[-1]["accuracy"]) if p else "-" for p in points]))
        best = [formatting.percent(max(point["accuracy"] for point in p)) if p else "-" for p in points]
        rows.append((f"{name}: best accuracy", best))
        tars = [formatting.percent(p[-1]["tar_at_far"]) if p else "-" for p in points]
        fars = sorted({p[-1]["far"] for p in points if p})
        rows.append((f"{name}: TAR at FAR {', '.join(f'{far:g}' for far in fars)}", tars))
    return rows


_FIGURES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "updates": lambda summary: formatting.number(summary["updates"]),
    "ranks": lambda summary: formatting.number(summary["ranks"]),
    "final loss": lambda summary: formatting.number(summary["final_loss"], 4),
    "images per second": lambda summary: formatting.number(summary["samples_per_second"], 1),
    "time": lambda summary: formatting.duration(summary["seconds"]),
}


def differing(runs: Sequence[Run]) -> Table:
    """Returns the settings and versions that are not the same in all trainings."""
    tables = (run.settings for run in runs), (run.summary["versions"] for run in runs)
    return [row for table in tables for row in _differing(list(table))]


def _differing(tables: Sequence[Mapping[str, Any]]) -> Table:
    names = dict.fromkeys(name for table in tables for name in table)
    rows = [(name, [formatting.setting(table[name]) if name in table else "-" for table in tables]) for name in names]
    return [(name, cells) for name, cells in rows if len(set(cells)) > 1]


def render(runs: Sequence[Run]) -> str:
    """Returns the page as HTML5 without scripts."""
    names = [run.name for run in runs]
    drawn = [figure(chart) for chart in _charts(runs)]
    differ = differing(runs)
    none = tag("p", "All settings and versions are the same.", class_="soft")
    sections = [
        ("Results", _table("results", names, results(runs))),
        ("Settings that differ", _table("settings", names, differ) if differ else none),
        ("Curves", tag("div", drawn, class_="charts")),
    ]
    title = " and ".join(names)
    header = tag("header", tag("p", "Comparison of trainings", class_="kind"), tag("h1", title))
    content = [tag("section", tag("h2", name), content) for name, content in sections]
    return document(title, tag("body", header, tag("main", join(*content))))


def _table(label: str, names: Sequence[str], rows: Table) -> Markup:
    head = tag("thead", tag("tr", [tag("th", name, scope="col") for name in ("", *names)]))
    body = [tag("tr", tag("th", name, scope="row"), [tag("td", cell) for cell in cells]) for name, cells in rows]
    table = tag("table", head, tag("tbody", body))
    return tag("div", table, class_="wide", tabindex=0, role="region", aria_label=label)


def _charts(runs: Sequence[Run]) -> list[Chart]:
    drawn = [_accuracy(number, name, runs) for number, name in enumerate(_sets(runs))]
    for curve in CURVE_CHARTS:
        drawn.append(curve.chart([curve.line(run.name, run.series[curve.source], n) for n, run in enumerate(runs)]))
    return [chart for chart in drawn if chart is not None]


def _sets(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.sets))


def _accuracy(number: int, name: str, runs: Sequence[Run]) -> Chart | None:
    lines = []
    for look, run in enumerate(runs):
        points = run.sets.get(name, [])
        updates = np.array([point["num_update"] for point in points], np.float64)
        accuracy = np.array([formatting.finite(point["accuracy"]) for point in points])
        lines.append(Series(run.name, updates, 100 * accuracy, look))
    return over_updates(f"accuracy-{number}", f"Accuracy on {name}", "%, mean of ten folds", lines, 2)
