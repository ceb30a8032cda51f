"""Trains the demo with a sample of losses, sample ratios, ranks, threads and seeds, and prints two tables.

    python benchmarks/demo.py [--trainer torch] [name=value ...]

The runs are drawn from all combinations, with a seed chosen before the first run. A run takes 2 to 30 minutes on two
cores. Runs with a summary in models/benchmark-demo or models/benchmark-demo-torch are not repeated: remove the folder
after a change of the code. The exit code is 1 if an accuracy is below its bound.
"""

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
LEAST_ACCURACY = {1.0: 0.97, 0.1: 0.955}  # by sample ratio


class Run(NamedTuple):
    """A training of the sample."""

    loss: str
    ratio: float
    ranks: int
    threads: int
    seed: int


class Trainer(NamedTuple):
    """A trainer and the distribution of its runs: their number, the seed, and the values of each field of Run."""

    script: str
    folder: str
    runs: int
    draw: int
    values: tuple[tuple, ...]


TRAINERS = {
    "mxnet": Trainer(
        "run.sh",
        "benchmark-demo",
        24,
        15,
        (("arcface", "cosface"), tuple(LEAST_ACCURACY), (1, 2, 3, 4), (1, 2, 4), (0, 1, 2, 3, 4)),
    ),
    "torch": Trainer(
        "pytorch/run.sh", "benchmark-demo-torch", 12, 17, (("arcface",), (1.0,), (1, 2, 3), (1, 2, 4), (0, 1, 2, 3, 4))
    ),
}


def sample(trainer: Trainer) -> list[Run]:
    """Returns a random sample of all combinations, in the order of the draws."""
    every = [*itertools.starmap(Run, itertools.product(*trainer.values))]
    return random.Random(trainer.draw).sample(every, trainer.runs)


def train(script: str, folder: Path, ranks: int, threads: int, arguments: list[str]) -> dict:
    """Returns the summary of a training, or of an earlier one with the same arguments in ``folder``."""
    models = folder / "-".join([f"{ranks}x{threads}", *arguments])
    if not list(models.glob("*/summary.json")):
        environment = {**os.environ, "NP": str(ranks), "OMP_NUM_THREADS": str(threads)}
        command = ["bash", script, *arguments, f"models_root={models}"]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    (summary,) = models.glob("*/summary.json")
    return json.loads(summary.read_text())


def figures(summary: dict) -> str:
    """Returns the last verification as cells of a table."""
    last = summary["verification_details"]["demo_val"]
    return f"{last['accuracy']:.4f} | {last['dimensions']:.1f} | {last['agreement']:.3f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", choices=TRAINERS, default="mxnet")
    parser.add_argument("arguments", nargs="*", metavar="name=value")
    args = parser.parse_intermixed_args()
    print("| loss | r | ranks | threads | seed | bound | accuracy | dimensions | train/eval agreement | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    found: dict[tuple[str, float], list[float]] = {}
    trainer = TRAINERS[args.trainer]
    folder = ROOT / "models" / trainer.folder
    for run in sample(trainer):
        arguments = [f"loss={run.loss}", f"sample_ratio={run.ratio}", f"seed={run.seed}", *args.arguments]
        summary, least = train(trainer.script, folder, run.ranks, run.threads, arguments), LEAST_ACCURACY[run.ratio]
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
