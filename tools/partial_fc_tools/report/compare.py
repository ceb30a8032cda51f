"""Compares trainings: results, settings that differ, and curves on one page.

Prints the tables, and writes a page for any browser. A training is given by its output folder. It may still run, or may
have been killed: its figures are those of its last verification.
"""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from partial_fc.evaluation.verification import tar_differs
from partial_fc.training.report import formatting
from partial_fc.training.report.charts import Chart, accuracy, curves, figure_name, over_updates
from partial_fc.training.report.curves_json import Run, figures_of, is_of_pairs, read_runs
from partial_fc.training.report.markup import table, tag
from partial_fc.training.report.page import document, figures
from partial_fc.utils.cli import add_force
from partial_fc.utils.staging import staged_files
from partial_fc.utils.tables import format_table
from partial_fc.utils.text import say

EXAMPLE = "models/small-arcface-demo models/small-cosface-demo --out comparison.html"
Table = list[list[str]]


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
    for rows in (results(runs), differing(runs)):
        if rows:
            print("\n".join(format_table([names, *rows])), end="\n\n")
    say(f"{args.out}: the curves")
    return 0


def results(runs: Sequence[Run]) -> Table:
    """Returns the figures of each training: rows of a name and a cell for each training."""
    rows = [[name, *(show(run.curves["summary"]) for run in runs)] for name, show in _FIGURES.items()]
    for name in _sets(runs):
        points = [run.curves["sets"].get(name, []) for run in runs]
        if not all(is_of_pairs(p[-1]) for p in points if p):
            rows += _figure_rows(name, [figures_of(p[-1]) if p else {} for p in points])
            continue
        fars = ", ".join(f"{far:g}" for far in sorted({p[-1]["far"] for p in points if p}))
        shown: dict[str, Callable[[list[dict[str, Any]]], str]] = {
            "accuracy": lambda p: formatting.percent(p[-1]["accuracy"]),
            "best accuracy": lambda p: formatting.percent(max(point["accuracy"] for point in p)),
            f"TAR at FAR {fars}": lambda p: formatting.percent(p[-1]["tar_at_far"]),
            "measured FAR": lambda p: formatting.percent(p[-1].get("measured_far"), 3),
        }
        if any(tar_differs(p[-1]["tar_at_far"], p[-1].get("tar_interpolated")) for p in points if p):
            shown["insightface's TAR"] = lambda p: formatting.percent(p[-1].get("tar_interpolated"))
        rows += [[f"{name}: {figure}", *(show(p) if p else "-" for p in points)] for figure, show in shown.items()]
    return rows


def _figure_rows(name: str, figures: Sequence[Mapping[str, float]]) -> Table:
    """Returns a row for each figure of the last verifications of a set, which runs may lack."""
    rows = []
    for figure in dict.fromkeys(figure for run in figures for figure in run):
        cells = (formatting.number(run[figure], 4) if figure in run else "-" for run in figures)
        rows.append([f"{name}: {figure_name(figure)}", *cells])
    return rows


_FIGURES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "updates": lambda summary: formatting.number(summary["updates"]),
    "ranks": lambda summary: formatting.number(summary["ranks"]),
    "final loss": lambda summary: formatting.number(summary["final_loss"], 4),
    "samples per second": lambda summary: formatting.number(summary["samples_per_second"], 1),
    "time": lambda summary: formatting.duration(summary["seconds"]),
}


def differing(runs: Sequence[Run]) -> Table:
    """Returns the settings and versions that are not the same in all trainings, rows as `results`."""
    rows = []
    for tables in ([run.settings for run in runs], [run.curves["summary"]["versions"] for run in runs]):
        for name in dict.fromkeys(name for values in tables for name in values):
            cells = [values.get(name, "-") for values in tables]
            if len(set(cells)) > 1:
                rows.append([name, *cells])
    return rows


def render(runs: Sequence[Run]) -> str:
    """Returns the page as HTML5 without scripts."""
    names = ("", *(run.name for run in runs))
    differ = differing(runs)
    none = tag("p", "All settings and versions are the same.", class_="soft")
    sections = [
        ("Results", table("results", names, results(runs))),
        ("Settings that differ", table("settings", names, differ) if differ else none),
        ("Curves", figures(_charts(runs))),
    ]
    title = " and ".join(run.name for run in runs)
    header = tag("header", tag("p", "Comparison of trainings", class_="kind"), tag("h1", title))
    content = [tag("section", tag("h2", name), content) for name, content in sections]
    return document(title, tag("body", header, tag("main", content)))


def _charts(runs: Sequence[Run]) -> list[Chart]:
    charts = []
    for number, name in enumerate(_sets(runs)):
        found = {run.name: run.curves["sets"].get(name, []) for run in runs}
        every = [point for verified in found.values() for point in verified]
        first = next(iter(figures_of(every[0]))) if every else "accuracy"
        points = {run: [(p["num_update"], p[first]) for p in verified if first in p] for run, verified in found.items()}
        if all(map(is_of_pairs, every)):
            charts += accuracy(f"accuracy-{number}", f"Accuracy on {name}", points)
        else:
            charts += over_updates(f"figure-{number}", f"{figure_name(first)} on {name}", "", points, 1.0)
    return charts + curves({run.name: run.curves for run in runs})


def _sets(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.curves["sets"]))
