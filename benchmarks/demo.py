"""Trains the demo with both losses, full and sampled, and prints the README's table.

    . setup-utils/env.sh && python benchmarks/demo.py [name=value ...]

Takes four times three minutes on two cores; the outputs stay in models/benchmark-<sample ratio>.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEAD = "| loss | sample_ratio | held-out accuracy | images/s | training | the whole command |"


def measure(loss: str, ratio: float, words: list[str]) -> str:
    """Runs one training; its row of the table."""
    models = ROOT / "models" / f"benchmark-{ratio}"
    start = time.perf_counter()
    command = ["bash", "run.sh", "--loss", loss, "--models-root", str(models), f"sample_ratio={ratio}", *words]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    whole = time.perf_counter() - start
    summary = json.loads((models / f"small-{loss}-demo" / "summary.json").read_text())
    accuracy = summary["verification"]["demo_val"]
    speed, seconds = summary["samples_per_second"], summary["seconds"]
    return f"| {loss} | {ratio} | {accuracy:.4f} | {speed:.0f} | {seconds:.0f} s | {whole:.0f} s |"


def main() -> None:
    print(HEAD)
    print("| --- " * (HEAD.count("|") - 1) + "|", flush=True)
    for loss in ("arcface", "cosface"):
        for ratio in (1.0, 0.1):
            print(measure(loss, ratio, sys.argv[1:]), flush=True)


if __name__ == "__main__":
    main()
