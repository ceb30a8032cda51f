"""Does sampling a tenth of the centers cost accuracy? Trains on the glyphs at several sample ratios: docs/claim.md.

    python -m examples.glyphs                       # writes the set, once
    python benchmarks/claim.py                      # the PyTorch trainer, three seeds, all ratios
    python benchmarks/claim.py --trainer mxnet --ratios 1 0.1 --seeds 0
    python benchmarks/claim.py --quick              # a few updates on a small set

Two ranks of one thread. Runs whose claim.json is in models/claim are taken from there: remove the folder after a change
of the code. Writes docs/claim.png.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from benchmarks.host import cpu_name  # noqa: E402
from examples.glyphs.evaluate import evaluate  # noqa: E402
from partial_fc.utils.tables import markdown_table  # noqa: E402

SCRIPTS = {"torch": "pytorch/run.sh", "mxnet": "run.sh"}
RANKS = 2
MEASURES = {"accuracy": "accuracy", "tar": "TAR at FAR 1e-4", "rank1": "rank-1"}
KINDS = {"trained": "typefaces of training", "new": "new typefaces"}
# 97.5 % quantiles of Student's t by the number of seeds.
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}


class Run(NamedTuple):
    """A training."""

    trainer: str
    ratio: float
    seed: int


def measured(run: Run, data: Path, folder: Path, arguments: list[str]) -> dict:
    """The figures of a training, or those of an earlier one in ``folder``."""
    models = folder / f"{run.trainer}-r{run.ratio:g}-seed{run.seed}"
    path = models / "claim.json"
    if not path.exists():
        settings = [f"rec={data}", f"sample_ratio={run.ratio}", f"seed={run.seed}", f"models_root={models}", *arguments]
        command = ["bash", SCRIPTS[run.trainer], "--dataset", "glyphs", "--loss", "cosface", *settings]
        begin = time.monotonic()
        peak = run_with_peak_memory(command, {**os.environ, "NP": str(RANKS), "OMP_NUM_THREADS": "1"})
        (trained,) = models.glob("*/summary.json")
        found = evaluate(trained.parent, data)
        figures = {kind: {name: figure._asdict() for name, figure in by.items()} for kind, by in found.items()}
        speed = json.loads(trained.read_text())["samples_per_second"]
        content = {"seconds": time.monotonic() - begin, "images_per_second": speed, "peak_mb": peak, "figures": figures}
        path.write_text(json.dumps(content, indent=1) + "\n")
    return json.loads(path.read_text())


def run_with_peak_memory(command: list[str], environment: dict[str, str]) -> float:
    """Runs a command; the most memory in MB that one of its processes had at a time."""
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return usage.ru_maxrss / 1024


def mean_and_margin(figures: list[dict]) -> tuple[float, float]:
    """The mean over seeds in percent, with the half-width of its 95 % interval: of the seeds, or of a single one."""
    values = [100 * figure["value"] for figure in figures]
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean, 100 * figures[0]["margin"]
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return mean, STUDENT[len(values)] * deviation / math.sqrt(len(values))


def rows_of(kind: str, results: dict[tuple[str, float], list[dict]]) -> list[list[str]]:
    """A row for each trainer and ratio."""
    rows = []
    for (trainer, ratio), runs in results.items():
        cells = []
        for name in MEASURES:
            mean, margin = mean_and_margin([run["figures"][kind][name] for run in runs])
            cells.append(f"{mean:.2f} ± {margin:.2f}")
        costs = [sum(run[name] for run in runs) / len(runs) for name in ("images_per_second", "peak_mb")]
        rows.append([trainer, f"{ratio:g}", str(len(runs)), *cells, *(f"{cost:.0f}" for cost in costs)])
    return rows


def draw_chart(path: Path, results: dict[tuple[str, float], list[dict]]) -> None:
    """Each measure over the sample ratio, in both kinds of typefaces."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(MEASURES), figsize=(11, 3.4), layout="constrained")
    for axis, (name, title) in zip(axes, MEASURES.items()):
        for trainer in dict.fromkeys(trainer for trainer, _ in results):
            for kind, label in KINDS.items():
                ratios = [ratio for own, ratio in results if own == trainer]
                points = [
                    mean_and_margin([run["figures"][kind][name] for run in results[trainer, ratio]]) for ratio in ratios
                ]
                means, margins = zip(*points)
                axis.errorbar(ratios, means, margins, marker="o", capsize=3, label=f"{trainer}, {label}")
        axis.set(
            title=title, xlabel="sample_ratio", xscale="log", xticks=ratios, xticklabels=[f"{r:g}" for r in ratios]
        )
        axis.minorticks_off()
    axes[0].set_ylabel("%")
    axes[0].legend(fontsize="small")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", nargs="+", choices=SCRIPTS, default=["torch"])
    parser.add_argument("--ratios", nargs="+", type=float, default=[1.0, 0.3, 0.1, 0.05])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--data", type=Path, default=ROOT / "data" / "glyphs", help="folder of the set (data/glyphs)")
    parser.add_argument("--folder", type=Path, default=ROOT / "models" / "claim", help="of the runs (models/claim)")
    parser.add_argument("--chart", type=Path, default=ROOT / "docs" / "claim.png")
    parser.add_argument("--quick", action="store_true", help="one seed, r = 1 and 0.1, 20 updates")
    args = parser.parse_args()
    arguments = []
    if args.quick:
        classes = json.loads((args.data / "glyphs.json").read_text())["classes"]
        arguments = [f"num_classes={classes}", "num_epoch=0", "max_update=20", "lr_epochs=[]", "warmup_steps=5"]
        args.seeds, args.ratios = args.seeds[:1], [1.0, 0.1]
    print(f"{cpu_name()}, {RANKS} ranks of one thread")
    results: dict[tuple[str, float], list[dict]] = {}
    for seed in args.seeds:
        for trainer in args.trainer:
            for ratio in args.ratios:
                run = Run(trainer, ratio, seed)
                found = measured(run, args.data, args.folder, arguments)
                results.setdefault((trainer, ratio), []).append(found)
                print(
                    f"{run}: {found['figures']['new']['rank1']['value']:.4f} rank-1, {found['seconds']:.0f} s",
                    flush=True,
                )
    heading = ["trainer", "r", "seeds", *MEASURES.values(), "images/s", "MB of a rank"]
    for kind, title in KINDS.items():
        print("\n".join(["", f"Unseen characters, {title}:", "", *markdown_table(heading, rows_of(kind, results))]))
    draw_chart(args.chart, results)


if __name__ == "__main__":
    main()
