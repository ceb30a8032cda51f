"""Prints tables of the runs of benchmarks/words.py in a folder. See docs/words.md.

    .venv-torch/bin/python benchmarks/words_figures.py

Differences are to the runs with r = 1 and the same seeds. With three or more seeds, 95 % intervals are over the seeds,
by Student's t. Otherwise they are over the held-out lexemes, drawn with replacement, and do not include the variation
between seeds. Each run keeps the scores of its probes in scores.npz.

Shapes: D draws.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.words import FOLDER, HEADING, SET, SHARES, Case, row  # noqa: E402
from examples.figures import STUDENT, Figure, mean_difference, percent  # noqa: E402
from examples.search_figures import Scores, redrawn_shares, search_scores  # noqa: E402
from examples.words.evaluate import measure_of  # noqa: E402
from examples.words.heldout import FARS, held_out  # noqa: E402
from examples.words.lexemes import read_set, split_lexemes  # noqa: E402
from partial_fc.export.item_model import ItemModel  # noqa: E402
from partial_fc.utils.config import parse_options  # noqa: E402
from partial_fc.utils.tables import markdown_table  # noqa: E402

Runs = dict[int, "Run"]  # by seed


class Run(NamedTuple):
    """A training: the content of its words.json, and its folder."""

    content: dict
    folder: Path

    def figure(self, name: str) -> float:
        return self.content["figures"][name]


def place(case: Case) -> tuple:
    """Returns the sort key of a case: larger ratios first, then the other cases."""
    numbers = case.ratio.strip("[]").split(",")
    return case.classes, case.updates, case.wrong, case.corrected, len(numbers), -float(numbers[0])


def read_runs(folder: Path) -> dict[Case, Runs]:
    """Returns the finished runs in a folder, in the order of their cases."""
    found: dict[Case, Runs] = {}
    for path in folder.glob("*/words.json"):
        content = json.loads(path.read_text())
        case = Case.of(content["key"])
        found.setdefault(case, {})[content["key"]["settings"]["seed"]] = Run(content, path.parent)
    return {case: dict(sorted(found[case].items())) for case in sorted(found, key=place)}


def redrawn_of(run: Run, root: Path) -> dict[str, np.ndarray]:
    """Returns the figures of a search for lexemes drawn with replacement, (D,) each."""
    path = run.folder / "scores.npz"
    if not path.exists() or path.stat().st_mtime < (run.folder / "words.json").stat().st_mtime:
        told = dict(word.split("=", 1) for word in run.content["key"]["arguments"])
        options = parse_options("task_options", told["task_options"])
        lexemes = read_set(root)
        unseen = split_lexemes(lexemes, 0, options["unseen"], seed=0).unseen
        held = held_out(lexemes, unseen, options["pairs"], options["probes"], seed=0)
        measure = measure_of(ItemModel.open(run.folder))
        words = map(measure.represent, (held.probes, held.gallery))
        scores = search_scores(measure.all_similarities, *words, held.mates, FARS)
        np.savez_compressed(path, **scores._asdict())
    with np.load(path) as file:
        return redrawn_shares(Scores(**file), FARS)


def differences(pairs: list[tuple[Run, Run]], root: Path) -> dict[str, Figure]:
    """Returns the differences of each figure between runs and the runs with r = 1 and the same seeds."""
    redrawn = [] if len(pairs) in STUDENT else [[redrawn_of(run, root) for run in pair] for pair in pairs]
    found = {}
    for name, (kind, figure) in SHARES.items():
        drawn = [own[figure] - full[figure] for own, full in redrawn] if kind == "search" else []
        found[name] = mean_difference([run.figure(name) - full.figure(name) for run, full in pairs], drawn)
    return found


class Compared(NamedTuple):
    """A case compared with r = 1."""

    case: Case
    seeds: int
    differences: dict[str, Figure]
    gain: float  # speedup

    @property
    def cells(self) -> list[str]:
        cells = [percent(self.differences[name], "+") for name in SHARES]
        return [*self.case.cells, str(self.seeds), *cells, f"{self.gain:.2f}"]


def compare(runs: dict[Case, Runs], root: Path) -> list[Compared]:
    """Returns all cases with r < 1 that can be compared with runs with r = 1."""
    compared = []
    for case, own in runs.items():
        full = runs.get(case.full, {})
        seeds = [seed for seed in own if seed in full]
        if case == case.full or not seeds:
            continue
        pairs = [(own[seed], full[seed]) for seed in seeds]
        times = [[run.content["cpu_seconds"] for run in side] for side in zip(*pairs)]
        compared.append(Compared(case, len(seeds), differences(pairs, root), sum(times[1]) / sum(times[0])))
    return compared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=SET, help="folder of the set (data/words)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the runs (models/words-claim)")
    args = parser.parse_args()
    runs = read_runs(args.folder)
    compared = compare(runs, args.root)
    rows = [row(case, [run.content for run in own.values()]) for case, own in runs.items()]
    print("\n".join(markdown_table(HEADING, rows)))
    print("\nDifference to r = 1 in points, and how many times as fast:\n")
    heading = [*HEADING[:-2], "times as fast"]
    print("\n".join(markdown_table(heading, [one.cells for one in compared])))


if __name__ == "__main__":
    main()
