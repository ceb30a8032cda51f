"""Does sampling a tenth of the centers cost accuracy? Trains on the glyphs at several sample ratios: docs/claim.md.

    python -m examples.glyphs                       # writes the set, once
    python benchmarks/claim.py                      # the PyTorch trainer, three seeds, all ratios
    python benchmarks/claim.py --trainer mxnet --ratios 1 0.1 --seeds 0
    python benchmarks/claim.py --trainer random --ratios 0.1       # positives not always in the sample
    python -m examples.glyphs.noise flip data/glyphs-flip
    python benchmarks/claim.py --noise flip --ratios 1 0.1 --filters 0 0.4
    python benchmarks/claim.py --quick              # a few updates on the set at hand

Two ranks of one thread. Runs whose claim.json is in models/claim are taken from there: remove the folder after a change
of the code. --chart draws accuracy over the sample ratio.
"""

from __future__ import annotations

import argparse
import itertools
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
from examples.glyphs.evaluate import Figure, evaluate, percent  # noqa: E402
from examples.glyphs.noise import KINDS as NOISES  # noqa: E402
from partial_fc.data.face_records import read_property  # noqa: E402
from partial_fc.utils.tables import markdown_table  # noqa: E402

RANKS = 2
LAUNCH = [".venv-torch/bin/torchrun", "--standalone", f"--nproc_per_node={RANKS}"]
COMMANDS = {
    "torch": ["bash", "pytorch/run.sh"],
    "mxnet": ["bash", "run.sh"],
    "random": [*LAUNCH, "benchmarks/random_positives.py"],  # PyTorch, positives not always in
}
MEASURES = {"accuracy": "accuracy", "tar": "TAR at FAR 1e-4", "rank1": "rank-1"}
COSTS = {"images_per_second": "images/s", "peak_mb": "MB of a rank"}
KINDS = {"trained": "typefaces of training", "new": "new typefaces"}
# 97.5 % quantiles of Student's t by the number of seeds.
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}


class Case(NamedTuple):
    """What is trained: trainer, noise of the labels (none, flip or split), sample_ratio, and filter of negatives."""

    trainer: str
    noise: str
    ratio: float
    threshold: float

    def folder(self, seed: int) -> str:
        """The name of its output folder."""
        noise = "" if self.noise == "none" else f"-{self.noise}"
        threshold = f"-filter{self.threshold:g}" if self.threshold else ""
        return f"{self.trainer}{noise}-r{self.ratio:g}{threshold}-seed{seed}"


def measured(case: Case, seed: int, data: Path, folder: Path, arguments: list[str]) -> dict:
    """The figures of a training, or those of an earlier one in ``folder``."""
    models = folder / case.folder(seed)
    path = models / "claim.json"
    if not path.exists():
        trained_on = data if case.noise == "none" else data.with_name(f"{data.name}-{case.noise}")
        properties = read_property(trained_on / "train.rec")
        assert properties is not None
        settings = {
            "rec": trained_on,
            "num_classes": properties[0],
            "sample_ratio": case.ratio,
            "interclass_filtering_threshold": case.threshold,
            "seed": seed,
            "models_root": models,
        }
        command = [*COMMANDS[case.trainer], "--dataset", "glyphs", "--loss", "cosface"]
        command += [f"{name}={value}" for name, value in settings.items()] + arguments
        begin = time.monotonic()
        peak = run_with_peak_memory(command, {**os.environ, "NP": str(RANKS), "OMP_NUM_THREADS": "1"})
        seconds = time.monotonic() - begin
        (summary,) = models.glob("*/summary.json")
        found = evaluate(summary.parent, data)
        content = {
            "seconds": seconds,
            "images_per_second": json.loads(summary.read_text())["samples_per_second"],
            "peak_mb": peak,
            "figures": {kind: {name: figure._asdict() for name, figure in by.items()} for kind, by in found.items()},
        }
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


def mean_of(figures: list[dict]) -> Figure:
    """The mean over seeds and the half-width of its 95 % interval: of the seeds, or that of a single one."""
    if len(figures) == 1:
        return Figure(**figures[0])
    values = [figure["value"] for figure in figures]
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return Figure(mean, STUDENT[len(values)] * deviation / math.sqrt(len(values)))


def rows_of(kind: str, results: dict[Case, list[dict]]) -> list[list[str]]:
    """A row for each case."""
    rows = []
    for case, runs in results.items():
        means = [mean_of([run["figures"][kind][name] for run in runs]) for name in MEASURES]
        costs = [sum(run[name] for run in runs) / len(runs) for name in COSTS]
        settings = [case.trainer, case.noise, f"{case.ratio:g}", f"{case.threshold:g}", str(len(runs))]
        rows.append([*settings, *map(percent, means), *(f"{cost:.0f}" for cost in costs)])
    return rows


def draw_chart(path: Path, results: dict[Case, list[dict]]) -> None:
    """Each measure over the sample ratio, in both kinds of typefaces; without noise and filter."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(MEASURES), figsize=(11, 3.4), layout="constrained")
    plain = sorted(case for case in results if case.noise == "none" and not case.threshold)
    for axis, (name, title) in zip(axes, MEASURES.items()):
        for trainer, kind in itertools.product(dict.fromkeys(case.trainer for case in plain), KINDS):
            cases = [case for case in plain if case.trainer == trainer]
            points = [mean_of([run["figures"][kind][name] for run in results[case]]) for case in cases]
            means, margins = zip(*((100 * point.value, 100 * point.margin) for point in points))
            ratios = [case.ratio for case in cases]
            axis.errorbar(ratios, means, margins, marker="o", capsize=3, label=f"{trainer}, {KINDS[kind]}")
            axis.set(xscale="log", xticks=ratios, xticklabels=[f"{ratio:g}" for ratio in ratios])
        axis.set(title=title, xlabel="sample_ratio")
        axis.minorticks_off()
    axes[0].set_ylabel("%")
    axes[0].legend(fontsize="small")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", nargs="+", choices=COMMANDS, default=["torch"])
    parser.add_argument("--noise", nargs="+", choices=["none", *NOISES], default=["none"])
    parser.add_argument("--ratios", nargs="+", type=float, default=[1.0, 0.3, 0.1, 0.05])
    parser.add_argument("--filters", nargs="+", type=float, default=[0.0], help="interclass_filtering_threshold")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--data", type=Path, default=ROOT / "data" / "glyphs", help="folder of the set (data/glyphs)")
    parser.add_argument("--folder", type=Path, default=ROOT / "models" / "claim", help="of the runs (models/claim)")
    parser.add_argument("--chart", type=Path, help="PNG to write")
    parser.add_argument("--quick", action="store_true", help="20 updates of one seed")
    args = parser.parse_args()
    arguments = ["num_epoch=0", "max_update=20", "lr_epochs=[]", "warmup_steps=5"] if args.quick else []
    cases = list(itertools.starmap(Case, itertools.product(args.trainer, args.noise, args.ratios, args.filters)))
    print(f"{cpu_name()}, {RANKS} ranks of one thread", flush=True)
    results: dict[Case, list[dict]] = {}
    for seed, case in itertools.product(args.seeds[:1] if args.quick else args.seeds, cases):
        found = measured(case, seed, args.data, args.folder, arguments)
        results.setdefault(case, []).append(found)
        print(f"{case.folder(seed)}: rank-1 {found['figures']['new']['rank1']['value']:.4f}", flush=True)
    heading = ["trainer", "noise", "r", "filter", "seeds", *MEASURES.values(), *COSTS.values()]
    for kind, title in KINDS.items():
        print("\n".join(["", f"Unseen characters, {title}:", "", *markdown_table(heading, rows_of(kind, results))]))
    if args.chart:
        draw_chart(args.chart, results)


if __name__ == "__main__":
    main()
