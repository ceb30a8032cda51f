"""Compares trainings: results, settings that differ, and curves on one page.

Prints the tables, and writes a page for any browser. Each training is given by its output folder. It may still be
running or have been killed: the results come from its last verification.
"""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from partial_fc.evaluation.verification import tar_differs
from partial_fc.training.report.charts import ACCURACY_UNIT, Chart, curves, figure_name, over_updates
from partial_fc.training.report.curves_json import Run, figures_of, is_of_pairs, read_runs
from partial_fc.training.report.formatting import duration, number, percent
from partial_fc.training.report.markup import table, tag
from partial_fc.training.report.page import document, figures, sectioned_body
from partial_fc.utils.cli import add_force, add_json
from partial_fc.utils.staging import staged_files
from partial_fc.utils.tables import format_table
from partial_fc.utils.text import say, say_json

EXAMPLE = "models/small-arcface-demo models/small-cosface-demo --out comparison.html"
SUMMARY: Mapping[str, tuple[str, Callable[[Any], str]]] = {  # row -> key of the summary, and its format
    "updates": ("updates", number),
    "ranks": ("ranks", number),
    "final loss": ("final_loss", partial(number, digits=4)),
    "samples per second": ("samples_per_second", partial(number, digits=1)),
    "time": ("seconds", duration),
}
Table = list[list[str]]  # rows of a name and a cell per training


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="output folder of a training; at least two")
    parser.add_argument("--out", default="comparison.html", help="the page (default: comparison.html)")
    add_force(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    if len(set(map(os.path.realpath, args.runs))) < max(2, len(args.runs)):
        raise ValueError("give the output folders of two trainings or more, each once")
    folder, name = os.path.split(args.out)
    with staged_files(folder, [name], args.force) as stage:
        runs = read_runs(args.runs)
        with open(os.path.join(stage, name), "w", encoding="utf-8", errors="replace") as file:
            file.write(render(runs))
    if args.json:
        of_runs = {
            run.name: {
                **run.curves["summary"],
                "sets": {name: points[-1] for name, points in run.curves["sets"].items() if points},
            }
            for run in runs
        }
        say_json({"runs": of_runs, "differing": {name: cells for name, *cells in differing(runs)}})
        return 0
    names = ("", *(run.name for run in runs))
    for rows in (results(runs), differing(runs)):
        if rows:
            print("\n".join(format_table([names, *rows])), end="\n\n")
    say(f"{args.out}: the curves")
    return 0


def results(runs: Sequence[Run]) -> Table:
    """Returns the figures of each training."""
    rows = [[name, *(show(run.curves["summary"][key]) for run in runs)] for name, (key, show) in SUMMARY.items()]
    for name, points_by_run in _sets(runs).items():
        last = [points[-1] if points else {} for points in points_by_run]
        measured = [point for point in last if point]
        if all(map(is_of_pairs, measured)):
            fars = ", ".join(f"{far:g}" for far in sorted({point["far"] for point in measured}))
            best = [max((point["accuracy"] for point in points), default=None) for points in points_by_run]
            cells = {
                "accuracy": [percent(point.get("accuracy")) for point in last],
                "best accuracy": list(map(percent, best)),
                f"TAR at FAR {fars}": [percent(point.get("tar_at_far")) for point in last],
                "measured FAR": [percent(point.get("measured_far"), 3) for point in last],
            }
            if any(tar_differs(point["tar_at_far"], point.get("tar_interpolated")) for point in measured):
                cells["insightface's TAR"] = [percent(point.get("tar_interpolated")) for point in last]
        else:
            names = dict.fromkeys(figure for point in measured for figure in figures_of(point))
            cells = {
                figure_name(figure): [number(point[figure], 4) if figure in point else "-" for point in last]
                for figure in names
            }
        for figure, of_runs in cells.items():
            rows.append([f"{name}: {figure}", *(cell if point else "-" for cell, point in zip(of_runs, last))])
    return rows


def differing(runs: Sequence[Run]) -> Table:
    """Returns the settings and versions that are not the same in all trainings."""
    rows = []
    for values_by_run in ([run.settings for run in runs], [run.curves["summary"]["versions"] for run in runs]):
        for name in dict.fromkeys(name for values in values_by_run for name in values):
            cells = [values.get(name, "-") for values in values_by_run]
            if len(set(cells)) > 1:
                rows.append([name, *cells])
    return rows


def render(runs: Sequence[Run]) -> str:
    """Returns the page as HTML5 without scripts."""
    names, rows = ("", *(run.name for run in runs)), differing(runs)
    same = tag("p", "All settings and versions are the same.", class_="soft")
    sections = [
        ("results", "Results", table("results", names, results(runs))),
        ("settings", "Settings that differ", table("settings", names, rows) if rows else same),
        ("curves", "Curves", figures(_charts(runs))),
    ]
    title = " and ".join(run.name for run in runs)
    return document(title, sectioned_body("Comparison of trainings", title, sections))


def _charts(runs: Sequence[Run]) -> list[Chart]:
    charts = []
    for index, (name, points_by_run) in enumerate(_sets(runs).items()):
        every = [point for points in points_by_run for point in points]
        pairs = all(map(is_of_pairs, every))
        first = "accuracy" if pairs else next(iter(figures_of(every[0])))
        values = {
            run.name: [(point["num_update"], point[first]) for point in points if first in point]
            for run, points in zip(runs, points_by_run)
        }
        if pairs:
            charts += over_updates(f"accuracy-{index}", f"Accuracy on {name}", ACCURACY_UNIT, values, percent=True)
        else:
            charts += over_updates(f"figure-{index}", f"{figure_name(first)} on {name}", "", values, percent=False)
    return charts + curves({run.name: run.curves for run in runs})


def _sets(runs: Sequence[Run]) -> dict[str, list[list[dict[str, Any]]]]:
    """Returns the points of each validation set, by run; an empty list for a run without this set."""
    names = dict.fromkeys(name for run in runs for name in run.curves["sets"])
    return {name: [run.curves["sets"].get(name, []) for run in runs] for name in names}
