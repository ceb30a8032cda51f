"""Does sampling cost accuracy with ten thousand to a hundred and seventy thousand real classes? See docs/words.md.

    python -m examples.words                                    # writes the set, once
    python benchmarks/words.py                                  # 10,000 classes, r = 1, 0.3, 0.1, one seed
    python benchmarks/words.py --classes 50000 0 --updates 3000 --ratios 1 0.1 0.03           # 0: all classes
    python benchmarks/words.py --ratios 1 0.1 --corrected       # r < 1 also with sampling_correction
    python benchmarks/words.py --ratios 1 [0.1,1]               # sampled, then full in the last epoch
    python benchmarks/words.py --classes 0 --updates 2000 --ratios 1 [0.1,1]       # full in the second half
    python benchmarks/words.py --ratios 1 0.1 --wrong 0.2       # a fifth of the forms has a wrong label
    python benchmarks/words.py --quick                          # a few updates on a hundredth of the set

Two ranks of one thread each. Seconds are processor seconds of both ranks, including their start. A run in FOLDER with
the same set and settings is not repeated: remove the folder after a change of the code.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.host import Usage, cpu_name, run_with_usage  # noqa: E402
from examples.figures import mean_of, percent  # noqa: E402
from examples.words.lexemes import read_set, split_lexemes  # noqa: E402
from examples.words.task import SIZES  # noqa: E402
from partial_fc.checkpoint.layout import step_name  # noqa: E402
from partial_fc.training.run_folder import CHECKPOINTS  # noqa: E402
from partial_fc.utils.config import parse_options  # noqa: E402
from partial_fc.utils.tables import markdown_table  # noqa: E402

SET, FOLDER = ROOT / "data" / "words", ROOT / "models" / "words-claim"
RANKS = 2
PYTHON = ".venv-torch/bin/python"
LAUNCH = [".venv-torch/bin/torchrun", "--standalone", f"--nproc_per_node={RANKS}", "train.py"]
QUICK_OPTIONS = {"unseen": 60, "pairs": 100, "probes": 3}
SHARES = {
    "accuracy": ("pairs", "accuracy"),
    "TAR at FAR 1e-4": ("search", "tar_at_far_1e_4"),
    "TAR at FAR 1e-6": ("search", "tar_at_far_1e_6"),
    "rank-1": ("search", "rank1"),
}
HEADING = ["classes", "length", "wrong labels", "r", "seeds", *SHARES, "CPU s", "MB of a rank"]


class Case(NamedTuple):
    """A configuration: lexemes, sample_ratio, correction, fraction of wrong labels, updates (0: two epochs)."""

    classes: int
    ratio: str
    corrected: bool
    wrong: float
    updates: int

    @classmethod
    def of(cls, key: dict) -> "Case":
        """Returns the case of a run from the key in its words.json."""
        settings, told = key["settings"], dict(word.split("=", 1) for word in key["arguments"])
        wrong = parse_options("task_options", told["task_options"]).get("wrong_labels", 0.0)
        own = (settings[name] for name in ("num_classes", "sample_ratio", "sampling_correction"))
        return cls(*own, wrong, int(told.get("max_update", 0)))

    @property
    def full(self) -> "Case":
        """Returns the corresponding case with all centers in every step."""
        return self._replace(ratio="1", corrected=False)

    @property
    def halves(self) -> list[str]:
        """Returns r in the two halves of the updates; empty if r changes with the epochs, or not at all."""
        ratios = self.ratio.strip("[]").split(",")
        return ratios if self.updates and len(ratios) > 1 else []

    @property
    def name(self) -> str:
        corrected = "-corrected" if self.corrected else ""
        wrong = f"-wrong{self.wrong:g}" if self.wrong else ""
        updates = f"-{self.updates}updates" if self.updates else ""
        return f"{self.classes}-r{self.ratio}{corrected}{wrong}{updates}"

    @property
    def cells(self) -> list[str]:
        """The first cells of a row of a table."""
        ratio = self.ratio + (", corrected" if self.corrected else "")
        length = f"{self.updates:,} updates" if self.updates else "2 epochs"
        return [f"{self.classes:,}", length, f"{100 * self.wrong:g} %", ratio]

    def settings(self, seed: int) -> dict[str, object]:
        """Returns the settings that differ between runs."""
        ratio = {"sample_ratio": self.ratio, "sampling_correction": self.corrected}
        return {"num_classes": self.classes, **ratio, "seed": seed}

    def arguments(self, options: dict[str, object]) -> list[str]:
        """Returns the other settings, with options of the task."""
        options = options | ({"wrong_labels": self.wrong} if self.wrong else {})
        updates = {"num_epoch": 0, "max_update": self.updates, "checkpoint_every": self.updates // 2}
        length = [f"{name}={value}" for name, value in updates.items()] if self.updates else []
        task_options = ",".join(f"{name}={value}" for name, value in options.items())
        return ["baselines=False", f"task_options={task_options}", *length]


class Place(NamedTuple):
    """The folder of the set and the folder of the runs."""

    root: Path
    folder: Path

    def models(self, case: Case, seed: int) -> Path:
        return self.folder / f"{case.name}-seed{seed}"


def measured(case: Case, seed: int, place: Place, arguments: list[str]) -> dict:
    """Returns the figures of a training, or of an earlier one with the same set and settings."""
    models, settings = place.models(case, seed), case.settings(seed)
    path, of_set = models / "words.json", json.loads((place.root / "lexemes.json").read_text())
    key = {"settings": settings, "arguments": arguments, "set": of_set}
    if not path.exists() or json.loads(path.read_text())["key"] != key:
        usage = trained(case, seed, place, arguments)
        summary = json.loads((models / "summary.json").read_text())
        figures = {name: summary["verification_details"][kind][figure] for name, (kind, figure) in SHARES.items()}
        path.write_text(json.dumps({"key": key, "figures": figures, **usage._asdict()}, indent=1) + "\n")
    return json.loads(path.read_text())


def trained(case: Case, seed: int, place: Place, arguments: list[str]) -> Usage:
    """Returns the resources of a training, which takes the first of two halves from the run with its r."""
    settings, seconds = case.settings(seed), 0.0
    if case.halves:
        first = case._replace(ratio=case.halves[0])
        seconds = measured(first, seed, place, arguments)["cpu_seconds"] / 2
        checkpoint = place.models(first, seed) / CHECKPOINTS / step_name(case.updates // 2)
        settings |= {"sample_ratio": case.halves[1], "resume": checkpoint}
    where = {"data_root": place.root.parent, "data_name": place.root.name, "output": place.models(case, seed)}
    words = [f"{name}={value}" for name, value in {**where, **settings}.items()]
    command = [*LAUNCH, "--config", "examples/words/settings.json", *words, *arguments]
    usage = run_with_usage(command, {**os.environ, "OMP_NUM_THREADS": "1"})
    return usage._replace(cpu_seconds=usage.cpu_seconds + seconds)


def row(case: Case, runs: list[dict]) -> list[str]:
    shares = [percent(mean_of([run["figures"][name] for run in runs])) for name in SHARES]
    costs = [f"{statistics.mean(run[name] for run in runs):.0f}" for name in ("cpu_seconds", "peak_mb")]
    return [*case.cells, str(len(runs)), *shares, *costs]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", nargs="+", type=int, default=[10000], help="lexemes to train on; 0 for all")
    parser.add_argument("--updates", type=int, default=0, help="updates per training; 0 for two epochs")
    parser.add_argument("--ratios", nargs="+", default=["1", "0.3", "0.1"], help="sample_ratio")
    parser.add_argument("--corrected", action="store_true", help="also run r < 1 with sampling_correction")
    parser.add_argument("--wrong", type=float, default=0.0, help="fraction of wrong labels")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--root", type=Path, default=SET, help="folder of the set (data/words)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the runs")
    parser.add_argument("--quick", action="store_true", help="run 20 updates with 200 classes, in FOLDER-quick")
    args = parser.parse_args()
    args.root, args.folder = args.root.resolve(), args.folder.resolve()
    if args.quick:
        args.classes, args.seeds, args.updates = [200], args.seeds[:1], 20
        args.root, args.folder = (path.with_name(f"{path.name}-quick") for path in (args.root, args.folder))
    return args


def main() -> None:
    args = parse_args()
    if args.quick:
        subprocess.run([PYTHON, "-m", "examples.words", "--quick", "--root", args.root], cwd=ROOT, check=True)
    options = {setting.name: setting.default for setting in SIZES} | (QUICK_OPTIONS if args.quick else {})
    lexemes = read_set(args.root)
    sizes = [len(split_lexemes(lexemes, classes, options["unseen"], 0).trained) for classes in args.classes]
    cases = [
        Case(size, ratio, False, args.wrong, args.updates) for size, ratio in itertools.product(sizes, args.ratios)
    ]
    if args.corrected:
        cases += [case._replace(corrected=True) for case in cases if case.ratio != "1"]
    print(f"{cpu_name()}, {RANKS} ranks of one thread", flush=True)
    results: dict[Case, list[dict]] = {}
    for seed, case in itertools.product(args.seeds, cases):
        arguments = case.arguments(options) + (["warmup_steps=5"] if args.quick else [])
        results.setdefault(case, []).append(measured(case, seed, Place(args.root, args.folder), arguments))
        print(*row(case, results[case]), flush=True)
    print("\n".join(["", *markdown_table(HEADING, [row(*result) for result in results.items()])]))


if __name__ == "__main__":
    main()
