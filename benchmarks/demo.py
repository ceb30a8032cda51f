"""Trains the demo with three seeds, full and sampled, and prints the README's table.

    . setup-utils/env.sh && python benchmarks/demo.py [name=value ...]

Takes nine times three minutes on two cores; the outputs stay in models/benchmark-<seed>-<sample ratio>.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SEEDS, RATIOS = (0, 1, 2), (1.0, 0.3, 0.1)


def accuracy(seed: int, ratio: float, words: list[str]) -> float:
    """Runs one training; its accuracy on people who were not trained on."""
    models = ROOT / "models" / f"benchmark-{seed}-{ratio}"
    command = ["bash", "run.sh", "--models-root", str(models), f"seed={seed}", f"sample_ratio={ratio}", *words]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    (summary,) = models.glob("small-*-demo/summary.json")
    return json.loads(summary.read_text())["verification"]["demo_val"]


def main() -> None:
    print("| sample_ratio | held-out accuracy, seeds 0, 1, 2 | mean |\n| --- | --- | --- |", flush=True)
    for ratio in RATIOS:
        found = [accuracy(seed, ratio, sys.argv[1:]) for seed in SEEDS]
        shown = ", ".join(f"{value:.4f}" for value in found)
        print(f"| {ratio} | {shown} | {sum(found) / len(found):.4f} |", flush=True)


if __name__ == "__main__":
    main()
