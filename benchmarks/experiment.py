"""Does sampling a tenth of the centers cost accuracy? Trains on the glyphs at several sample ratios.

See docs/experiment.md.

    python -m examples.glyphs                       # writes the set, once
    python benchmarks/experiment.py                 # the PyTorch trainer, three seeds, all ratios
    python benchmarks/experiment.py --trainer mxnet --ratios 1 0.1 --seeds 0
    python benchmarks/experiment.py --trainer random --ratios 0.1       # positives may be missing from the sample
    python -m examples.glyphs.noise flip data/glyphs-flip
    python benchmarks/experiment.py --noise flip --ratios 1 0.1 --filters 0 0.4
    python benchmarks/experiment.py --noise flip --ratios 1 0.1 --corrected         # also with sampling_correction
    python benchmarks/experiment.py --quick              # a few updates on the existing set

Two ranks of one thread each. With three or more seeds, 95 % intervals are over the seeds, by Student's t. Otherwise
they are over the characters, as in examples/glyphs/evaluate.py, and do not include the variation between seeds. A run
in models/experiment with the same set and settings is not repeated: remove the folder after a change of the code.
--chart draws the figures over the sample ratio.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.host import cpu_name, run_with_usage  # noqa: E402
from examples.figures import STUDENT, Figure, mean_difference, mean_of, percent  # noqa: E402
from examples.glyphs.evaluate import FARS, KINDS, MEASURES, SEARCHED, read_scores  # noqa: E402
from examples.glyphs.noise import KINDS as NOISES  # noqa: E402
from examples.search_figures import redrawn_shares  # noqa: E402
from partial_fc.data.face_records import read_property  # noqa: E402
from partial_fc.utils.tables import markdown_table  # noqa: E402

RANKS = 2
LAUNCH = [".venv-torch/bin/torchrun", "--standalone", f"--nproc_per_node={RANKS}"]
COMMANDS = {
    "torch": ["bash", "pytorch/run.sh"],
    "mxnet": ["bash", "run.sh"],
    "random": [*LAUNCH, "benchmarks/random_positives.py"],
}
QUICK = ["num_epoch=0", "max_update=20", "lr_epochs=[]", "warmup_steps=5", "val_targets=[]", "baselines=False"]
COSTS = {"images_per_second": "images/s", "peak_mb": "MB of a rank"}


class Case(NamedTuple):
    """A configuration: trainer, label noise (none, flip or split), sample_ratio, filter and correction."""

    trainer: str
    noise: str
    ratio: float
    threshold: float
    corrected: bool = False

    @property
    def name(self) -> str:
        noise = "" if self.noise == "none" else f"-{self.noise}"
        threshold = f"-filter{self.threshold:g}" if self.threshold else ""
        return f"{self.trainer}{noise}-r{self.ratio:g}{threshold}" + ("-corrected" if self.corrected else "")

    @property
    def cells(self) -> list[str]:
        """The first cells of a row of a table."""
        ratio = f"{self.ratio:g}" + (", corrected" if self.corrected else "")
        return [self.trainer, self.noise, ratio, f"{self.threshold:g}"]

    def set_folder(self, data: Path) -> Path:
        return data if self.noise == "none" else data.with_name(f"{data.name}-{self.noise}")

    def set_identity(self, data: Path) -> list[object]:
        """Returns the identity of the set: its parameters and its noise."""
        files = [data / "glyphs.json"]
        if self.noise != "none":
            files.append(self.set_folder(data) / "noise.json")
        return [json.loads(file.read_text()) for file in files]

    def settings(self, seed: int, data: Path) -> dict[str, object]:
        """Returns the settings that differ between runs."""
        folder = self.set_folder(data)
        properties = read_property(folder / "train.rec")
        if properties is None:
            raise SystemExit(f"{folder} is not there: see the commands at the head of benchmarks/experiment.py")
        return {
            "rec": str(folder),
            "num_classes": properties[0],
            "sample_ratio": self.ratio,
            "interclass_filtering_threshold": self.threshold,
            "seed": seed,
            **({"sampling_correction": True} if self.corrected else {}),
        }


class Result(NamedTuple):
    """The content of experiment.json, and the bootstrapped figures (D,) by kind and name."""

    content: dict
    redrawn: dict[str, dict[str, np.ndarray]]

    def figure(self, kind: str, name: str) -> Figure:
        return Figure(*self.content["figures"][kind][name])


def measured(case: Case, seed: int, data: Path, folder: Path, arguments: list[str]) -> Result:
    """Returns the figures of a training, or of an earlier one in ``folder`` with the same set and settings."""
    models = folder / f"{case.name}-seed{seed}"
    path = models / "experiment.json"
    settings = case.settings(seed, data)
    key = {"settings": settings, "arguments": arguments, "set": case.set_identity(data)}
    if not path.exists() or json.loads(path.read_text())["key"] != key:
        command = [*COMMANDS[case.trainer], "--dataset", "glyphs", "--loss", "cosface", f"output={models}"]
        command += [f"{name}={value}" for name, value in settings.items()] + arguments
        peak, _ = run_with_usage(command, {**os.environ, "NP": str(RANKS), "OMP_NUM_THREADS": "1"})
        # In a separate process, because its memory would be counted for the trainings after it.
        evaluation = ["-m", "examples.glyphs.evaluate", models, "--root", data, "--out", models / "evaluation"]
        subprocess.run([sys.executable, *evaluation], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        summary = json.loads((models / "summary.json").read_text())
        figures = json.loads((models / "evaluation.json").read_text())
        costs = {"images_per_second": summary["samples_per_second"], "peak_mb": peak}
        path.write_text(json.dumps({"key": key, **costs, "figures": figures}, indent=1) + "\n")
    scores = read_scores(models / "evaluation.npz")
    return Result(json.loads(path.read_text()), {kind: redrawn_shares(of, FARS) for kind, of in scores.items()})


def means_of(kind: str, runs: list[Result]) -> dict[str, Figure]:
    """Returns the means over seeds. With fewer than three seeds, the interval is the widest of the runs."""
    means = {}
    for name in MEASURES:
        figures = [run.figure(kind, name) for run in runs]
        mean = mean_of([figure.value for figure in figures])
        widest = max(figure.margin for figure in figures)
        means[name] = mean if len(runs) in STUDENT else mean._replace(margin=widest)
    return means


def rows_of(kind: str, results: dict[Case, list[Result]]) -> list[list[str]]:
    """Returns a row for each case."""
    rows = []
    for case, runs in results.items():
        costs = [f"{sum(run.content[name] for run in runs) / len(runs):.0f}" for name in COSTS]
        rows.append([*case.cells, str(len(runs)), *map(percent, means_of(kind, runs).values()), *costs])
    return rows


def differences(results: dict[Case, list[Result]]) -> list[list[str]]:
    """Returns a row for each case with its mean difference to r = 1, over seeds and on the same images."""
    rows = []
    for case, runs in results.items():
        full = results.get(case._replace(ratio=1.0, corrected=False))
        if case.ratio == 1 or not full:
            continue
        cells = []
        for kind, name in itertools.product(KINDS, SEARCHED):
            values = [run.figure(kind, name).value - one.figure(kind, name).value for run, one in zip(runs, full)]
            drawn = [run.redrawn[kind][name] - one.redrawn[kind][name] for run, one in zip(runs, full)]
            cells.append(percent(mean_difference(values, drawn), "+"))
        rows.append([*case.cells, str(len(full)), *cells])
    return rows


def draw_chart(path: Path, results: dict[Case, list[Result]]) -> None:
    """Draws each measure over the sample ratio for both kinds of typefaces, without noise, filter and correction."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(MEASURES), figsize=(11, 3.4), layout="constrained")
    plain = sorted(case for case in results if case.noise == "none" and not (case.threshold or case.corrected))
    for axis, (name, title) in zip(axes, MEASURES.items()):
        for trainer, kind in itertools.product(dict.fromkeys(case.trainer for case in plain), KINDS):
            cases = [case for case in plain if case.trainer == trainer]
            points = [means_of(kind, results[case])[name] for case in cases]
            means, margins = zip(*((100 * point.value, 100 * point.margin) for point in points))
            ratios = [case.ratio for case in cases]
            axis.errorbar(ratios, means, margins, marker="o", capsize=3, label=f"{trainer}, {KINDS[kind]}")
            axis.set(xscale="log", xticks=ratios, xticklabels=[f"{ratio:g}" for ratio in ratios])
        axis.set(title=title, xlabel="sample_ratio")
        axis.minorticks_off()
    axes[0].set_ylabel("%")
    axes[0].legend(fontsize="small")
    figure.savefig(path, dpi=120)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", nargs="+", choices=COMMANDS, default=["torch"])
    parser.add_argument("--noise", nargs="+", choices=["none", *NOISES], default=["none"])
    parser.add_argument("--ratios", nargs="+", type=float, default=[1.0, 0.3, 0.1, 0.05])
    parser.add_argument("--filters", nargs="+", type=float, default=[0.0], help="interclass_filtering_threshold")
    parser.add_argument("--corrected", action="store_true", help="also run r < 1 with sampling_correction")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--data", type=Path, default=ROOT / "data" / "glyphs", help="folder of the set (data/glyphs)")
    parser.add_argument("--folder", type=Path, default=ROOT / "models" / "experiment", help="folder of the runs")
    parser.add_argument("--chart", type=Path, help="PNG to write, for cases without noise and filter")
    parser.add_argument("--quick", action="store_true", help="run 20 updates with one seed, in FOLDER-quick")
    args = parser.parse_args()
    if len(set(args.seeds)) < len(args.seeds) or len(args.seeds) > max(STUDENT):
        parser.error(f"--seeds: give up to {max(STUDENT)} different ones")
    if args.chart and ("none" not in args.noise or 0 not in args.filters):
        parser.error("--chart needs --noise none and --filters 0")
    args.data, args.folder = args.data.resolve(), args.folder.resolve()
    if args.quick:
        args.seeds, args.folder = args.seeds[:1], args.folder.with_name(f"{args.folder.name}-quick")
    return args


def main() -> None:
    args = parse_args()
    cases = list(itertools.starmap(Case, itertools.product(args.trainer, args.noise, args.ratios, args.filters)))
    if args.corrected:
        cases += [case._replace(corrected=True) for case in cases if case.ratio < 1]
    for case in cases:
        case.settings(0, args.data)  # reports a missing set before hours of training
    print(f"{cpu_name()}, {RANKS} ranks of one thread", flush=True)
    results: dict[Case, list[Result]] = {}
    for seed, case in itertools.product(args.seeds, cases):
        found = measured(case, seed, args.data, args.folder, QUICK if args.quick else [])
        results.setdefault(case, []).append(found)
        print(f"{case.name} seed {seed}: rank-1 {percent(found.figure('new', 'rank1'))}", flush=True)
    heading = ["trainer", "noise", "r", "filter", "seeds"]
    for kind, title in KINDS.items():
        table = markdown_table([*heading, *MEASURES.values(), *COSTS.values()], rows_of(kind, results))
        print("\n".join(["", f"Unseen characters, {title}:", "", *table]))
    rows = differences(results)
    if rows:
        columns = [f"{title}, {kind}" for kind, title in itertools.product(KINDS, SEARCHED.values())]
        print(
            "\n".join(["", "Difference to r = 1, of the same images:", "", *markdown_table([*heading, *columns], rows)])
        )
    if args.chart:
        draw_chart(args.chart, results)


if __name__ == "__main__":
    main()
