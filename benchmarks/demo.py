"""Trains the demo with a sample of losses, sample ratios, ranks, threads and seeds, and prints two tables.

    . setup-utils/env.sh && python benchmarks/demo.py [--runs 24] [--draw 15] [name=value ...]

The runs are drawn from all combinations before the first one starts; ``--draw`` seeds that. One takes 2 to 30 minutes
on two cores. Runs whose summaries are in models/benchmark-demo are taken from there: remove the folder after a change
of the code. Exit code 1 where an accuracy is below its bound.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "models" / "benchmark-demo"
SIZES = ((1, 2, 3, 4), (1, 2, 4), (0, 1, 2, 3, 4))  # ranks, threads of a rank, seeds
LEAST_ACCURACY = {1.0: 0.97, 0.1: 0.955}  # by sample ratio


class Run(NamedTuple):
    """One training of the sample."""

    loss: str
    ratio: float
    ranks: int
    threads: int
    seed: int


def sample(runs: int, draw: int) -> list[Run]:
    """That many of all combinations, in the order drawn."""
    every = [*itertools.starmap(Run, itertools.product(("arcface", "cosface"), LEAST_ACCURACY, *SIZES))]
    return random.Random(draw).sample(every, runs)


def train(folder: Path, ranks: int, threads: int, arguments: list[str]) -> dict:
    """The summary of a training with these arguments, or of an earlier one with the same arguments in ``folder``."""
    models = folder / "-".join([f"{ranks}x{threads}", *arguments])
    if not list(models.glob("*/summary.json")):
        environment = {**os.environ, "NP": str(ranks), "OMP_NUM_THREADS": str(threads)}
        command = ["bash", "run.sh", *arguments, f"models_root={models}"]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    (summary,) = models.glob("*/summary.json")
    return json.loads(summary.read_text())


def figures(summary: dict) -> str:
    """The last verification as cells of a table."""
    last = summary["verification_details"]["demo_val"]
    return f"{last['accuracy']:.4f} | {last['dimensions']:.1f} | {last['agreement']:.3f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--draw", type=int, default=15)
    parser.add_argument("arguments", nargs="*", metavar="name=value")
    args = parser.parse_intermixed_args()
    print("| loss | r | ranks | threads | seed | bound | accuracy | dimensions | mode agreement | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    found: dict[tuple[str, float], list[float]] = {}
    for run in sample(args.runs, args.draw):
        arguments = [f"loss={run.loss}", f"sample_ratio={run.ratio}", f"seed={run.seed}", *args.arguments]
        summary, least = train(FOLDER, run.ranks, run.threads, arguments), LEAST_ACCURACY[run.ratio]
        found.setdefault((run.loss, run.ratio), []).append(summary["verification"]["demo_val"])
        print(
            "|",
            " | ".join(map(str, run)),
            f"| {least} |",
            figures(summary),
            f"| {summary['seconds']:.0f} |",
            flush=True,
        )
    print("\n| loss | r | runs | lowest | mean | bound |\n| --- | --- | --- | --- | --- | --- |")
    for (loss, ratio), values in sorted(found.items()):
        mean = sum(values) / len(values)
        print(f"| {loss} | {ratio} | {len(values)} | {min(values):.4f} | {mean:.4f} | {LEAST_ACCURACY[ratio]} |")
    return int(any(min(values) < LEAST_ACCURACY[ratio] for (_, ratio), values in found.items()))


if __name__ == "__main__":
    sys.exit(main())
