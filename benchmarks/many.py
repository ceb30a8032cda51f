"""100,000 identities of synthetic faces: costs of the set, a short training, and where the layer takes most of a step.

    python benchmarks/many.py            # one hour on two cores, and 4 GB of disk; see docs/experiment.md
    python benchmarks/many.py --quick    # 100 identities, one ratio and a few updates

The PyTorch trainer with two ranks of one thread. A set that is in data/many is not drawn again. The share of the
layer is what a step takes longer than one with as many classes as images, which has the same backbone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.host import cpu_name, run_with_usage  # noqa: E402
from partial_fc.data.synthetic.dataset import FILES  # noqa: E402
from partial_fc.training.report.curves_json import read_runs  # noqa: E402
from partial_fc.utils.tables import markdown_table  # noqa: E402

RANKS = 2
TRAIN = ["bash", "pytorch/run.sh", "--dataset", "demo", "--loss", "cosface"]
WARMUP = 400  # updates; of the preset demo
LOGGED = 10  # updates between two speeds of a step, of which the first two are left out
OPEN = "import sys; from partial_fc.data.face_records import FaceRecords; FaceRecords(sys.argv[1])"


class Size(NamedTuple):
    """How much is drawn, trained and timed: a training for each ratio, a step for each ratio and number of classes.

    ``pairs`` are of the verification, ``batch`` is of a rank, ``updates`` of a training, ``steps`` the number of timed
    updates of a case.
    """

    identities: int
    images: int
    pairs: int
    batch: int
    updates: int
    ratios: Sequence[float]
    classes: Sequence[int]
    steps: int


FULL = Size(100_000, 10, 2_000, 64, 5_000, (1.0, 0.1), (1_000, 10_000, 30_000, 100_000, 300_000, 1_000_000), 60)
QUICK = Size(100, 3, 100, 8, 10, (0.1,), (1_000,), 30)


def cost_of(*command: str | Path) -> str:
    """Seconds and memory of a command of Python, as a cell of a table."""
    seconds, megabytes = run_with_usage([sys.executable, *map(str, command)])
    return f"{seconds:.1f} s, {megabytes:.0f} MB"


def costs_of_the_set(size: Size, data: Path) -> list[list[str]]:
    """Rows: what it takes to draw the set, and to open it for the first and the second time."""
    rows = []
    if not all((data / name).exists() for name in FILES):
        count = ["--identities", str(size.identities), "--images-per-identity", str(size.images)]
        count += ["--pairs", str(size.pairs)]
        rows.append(["draw", cost_of("-m", "partial_fc.data.synthetic", data, *count)])
    gigabytes = sum((data / name).stat().st_size for name in FILES) / 1e9
    rows.append(["size", f"{gigabytes:.2f} GB"])
    for title in ("open for the first time", "open again"):
        rows.append([title, cost_of("-c", OPEN, data / "train.rec")])
    return rows


def train(folder: Path, *settings: str) -> float:
    """Trains into ``folder``; returns the most MB of a rank."""
    environment = {**os.environ, "NP": str(RANKS), "OMP_NUM_THREADS": "1"}
    return run_with_usage([*TRAIN, f"output={folder}", *settings], environment)[1]


def accuracy_of(ratio: float, size: Size, data: Path, folder: Path) -> list[str]:
    """A row: what a short training reaches on the held-out people of the set, and costs."""
    drops = [size.updates * 4 // 5, size.updates * 19 // 20]
    megabytes = train(
        folder,
        "dataset=demo",
        f"rec={data}",
        f"num_classes={size.identities}",
        f"batch_size={size.batch}",
        f"sample_ratio={ratio:g}",
        f"max_update={size.updates}",
        f"lr_steps={json.dumps(drops)}",
        f"warmup_steps={min(WARMUP, size.updates // 2)}",
    )
    (run,) = read_runs([str(folder)])
    (points,) = run.sets.values()
    last = points[-1]
    figures = [f"{100 * last[name]:.2f}" for name in ("accuracy", "tar_at_far")]
    costs = [f"{run.summary['samples_per_second']:.0f}", f"{run.summary['seconds']:.0f}", f"{megabytes:.0f}"]
    return [f"{ratio:g}", *figures, *costs]


def step_seconds(classes: int, ratio: float, size: Size) -> float:
    """Median seconds of a step on dummy images."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"num_classes": classes, "sample_ratio": ratio, "batch_size": size.batch, "max_update": size.steps}
        settings |= {"lr_steps": "[]", "debug": True, "log_every": LOGGED, "checkpoint_every": 0}
        settings |= {"val_targets": "[]", "baselines": False}
        train(Path(folder) / "run", *(f"{name}={value}" for name, value in settings.items()))
        (run,) = read_runs([f"{folder}/run"])
    speeds = run.series["speeds"][2:, 1]
    return RANKS * size.batch / float(np.median(speeds))


def shares(size: Size) -> list[list[str]]:
    """A row for each number of classes: step and share of the layer, for each ratio."""
    backbone = step_seconds(RANKS * size.batch, 1.0, size)
    rows = []
    for count in size.classes:
        row = [f"{count:,}"]
        for ratio in size.ratios:
            seconds = step_seconds(count, ratio, size)
            row += [f"{1000 * seconds:.0f} ms", f"{max(0.0, 1 - backbone / seconds):.0%}"]
        rows.append(row)
        print(" ".join(row), flush=True)
    return rows


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / "data" / "many", help="folder of the set (data/many)")
    parser.add_argument("--folder", type=Path, default=ROOT / "models" / "many", help="of the trainings (models/many)")
    text = "100 identities, one ratio and a few updates, in DATA-quick and FOLDER-quick"
    parser.add_argument("--quick", action="store_true", help=text)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    size = QUICK if args.quick else FULL
    data, folder = (path.resolve() for path in (args.data, args.folder))
    if args.quick:
        data, folder = (path.with_name(f"{path.name}-quick") for path in (data, folder))
    print(f"{cpu_name()}, {RANKS} ranks of one thread", flush=True)
    print(
        "\n".join(markdown_table(["set", "seconds, most memory of a process"], costs_of_the_set(size, data))),
        flush=True,
    )
    rows = [accuracy_of(ratio, size, data, folder / f"r{ratio:g}") for ratio in size.ratios]
    heading = ["r", "accuracy", "TAR at FAR 1e-3", "images/s", "seconds", "MB of a rank"]
    print("\n".join(["", *markdown_table(heading, rows)]), flush=True)
    heading = ["classes", *itertools.chain(*((f"step, r = {ratio:g}", "of it the layer") for ratio in size.ratios))]
    print("\n".join(["", *markdown_table(heading, shares(size))]))


if __name__ == "__main__":
    main()
