"""Measures time and memory of a step of the layer in both trainers, which must be installed, and in textbook forms.

    python benchmarks/layer.py                                       # the four cases of docs/layer.md
    python benchmarks/layer.py --classes 100000 --ratio 0.1          # one case
    python benchmarks/layer.py --json layer.json

Two ranks of one thread each, 64 images per rank, embeddings of 512 numbers, CosFace, a linear backbone. Times are
medians over the steps, memory is the peak in addition to centers and momentum, both as the maximum over the ranks. The
floor is the time of a step's three matrix products and one pass over its centers and momentum, in PyTorch.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.host import cpu_name, run_ranks  # noqa: E402
from partial_fc.utils.tables import markdown_table  # noqa: E402

CASES = ((100_000, 1.0), (100_000, 0.1), (1_000_000, 0.1), (1_000_000, 1.0))
TIMEOUT = 1200
# Shown relative to PartialFC in float32.
OTHERS = ("textbook", "textbook on MXNet", "MXNet trainer", "bfloat16", "PartialFC_V2")
COMMANDS = {
    "MXNet": ". setup-utils/env.sh && mpirun -q -np 2 python benchmarks/layer_mxnet.py",
    "PyTorch": ".venv-torch/bin/torchrun --standalone --nproc_per_node=2 benchmarks/layer_torch.py",
}


def measure(trainer: str, classes: int, ratio: float, steps: int) -> dict:
    """Returns the figures that a rank program prints, see layer_mxnet.py and layer_torch.py."""
    return run_ranks(f"{COMMANDS[trainer]} --classes {classes} --ratio {ratio} --steps {steps}", TIMEOUT)


class Row(NamedTuple):
    """Measurements of a case by form: seconds, and bytes in addition to centers and momentum; see layer_torch.py."""

    classes: int
    ratio: float
    floor: float
    mxnet: dict[str, list[float]]
    torch: dict[str, list[float]]

    def cells(self) -> list[str]:
        """Returns the cells of a row of the table."""
        forms = {**self.torch, "textbook on MXNet": self.mxnet["textbook"], "MXNet trainer": self.mxnet["MXNet"]}
        others = [forms[name] for name in OTHERS]
        seconds, nbytes = self.torch["PartialFC"]
        return [
            f"{self.classes:,}",
            f"{self.ratio}",
            f"{seconds:.3f} s",
            f"{seconds / self.floor:.2f} x",
            *(f"{other[0]:.3f} s, {other[0] / seconds:.2f} x" for other in others),
            f"{nbytes / 1e6:.0f} MB",
            *(f"{other[1] / 1e6:.0f} MB, {other[1] / nbytes:.1f} x" for other in others),
        ]


HEADING = ("classes", "r", "PartialFC", "floor", *OTHERS, "memory", *OTHERS)


def measure_case(classes: int, ratio: float, steps: int) -> Row:
    torch = measure("PyTorch", classes, ratio, steps)
    return Row(classes, ratio, torch.pop("floor"), measure("MXNet", classes, ratio, steps), torch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int)
    parser.add_argument("--ratio", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cases = [(args.classes, args.ratio)] if args.classes else CASES
    rows = [measure_case(classes, ratio, args.steps) for classes, ratio in cases]
    print(cpu_name())
    print("\n".join(markdown_table(HEADING, [row.cells() for row in rows])))
    if args.json:
        args.json.write_text(json.dumps({"cpu": cpu_name(), "cases": [row._asdict() for row in rows]}, indent=1))


if __name__ == "__main__":
    main()
