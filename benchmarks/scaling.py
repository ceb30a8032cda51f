"""Time and bytes of a step of the classification layer as classes and ranks grow together, on one host.

. setup-utils/env.sh
python benchmarks/scaling.py                     # 1, 2 and 4 ranks of 50,000 classes each; writes docs/scaling.png
python benchmarks/scaling.py --classes 20000 --ratio 0.1 --chart /tmp/scaling.png
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

RANKS = (1, 2, 4)
TIMEOUT = 300
PARTS = {
    "features": "all-gather of features and labels",
    "softmax_statistics": "all-gather of statistics",
    "feature_gradient": "reduce-scatter of gradients",
}


def measure(classes: int, ratio: float, steps: int) -> None:
    """What each rank does: rank 0 prints seconds of a step and the bytes it receives, as JSON."""
    import horovod.mxnet as hvd
    import layer_mxnet
    import mxnet as mx

    from partial_fc.distributed.timeline import read_timeline
    from partial_fc_mxnet import SampleDistributeModule

    hvd.init()
    size = hvd.size()
    module = layer_mxnet.build(SampleDistributeModule, classes * size, ratio)
    seconds = layer_mxnet.time_steps(module, layer_mxnet.batches(classes * size, steps + 2))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "timeline.json")
        hvd.start_timeline(path)
        for batch in layer_mxnet.batches(classes * size, 1):
            module.forward_backward(batch)
        mx.nd.waitall()
        hvd.stop_timeline()
        step = read_timeline(path) if hvd.rank() == 0 and size > 1 else []
    moved = {one.name: one.received(size) for one in step if one.name in PARTS}
    if hvd.rank() == 0:
        print(json.dumps({"ranks": size, "seconds": seconds, "moved": moved}), flush=True)


def launch(ranks: int, args: argparse.Namespace) -> dict:
    """Runs the measurement with this number of ranks."""
    command = ["mpirun", "-q", "-np", str(ranks), sys.executable, __file__, "--measure"]
    command += ["--classes", str(args.classes), "--ratio", str(args.ratio), "--steps", str(args.steps)]
    env = dict(os.environ, HOROVOD_TIMELINE="DYNAMIC", OMP_NUM_THREADS="1")
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT)
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    if run.returncode or not lines:
        raise RuntimeError(f"{' '.join(command)} ended with {run.returncode}:\n{run.stdout}{run.stderr}")
    return json.loads(lines[-1])


def draw(path: str, results: list[dict], args: argparse.Namespace) -> None:
    """Milliseconds and kilobytes over the number of classes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    labels = [f"{one['ranks']} x {args.classes:,}" for one in results]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.4))
    left.bar(labels, [core_milliseconds(one) for one in results], color="#4477aa")
    left.set(title="core time of a rank in a step", ylabel="ms", xlabel="ranks x classes")
    bottom = [0.0] * len(results)
    for name, what in PARTS.items():
        height = [one["moved"].get(name, 0) / 1e3 for one in results]
        right.bar(labels, height, bottom=bottom, label=what)
        bottom = [low + more for low, more in zip(bottom, height)]
    right.set(title="received by a rank in a step", ylabel="kB", xlabel="ranks x classes")
    right.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def core_milliseconds(result: dict) -> float:
    """Time of a step, less what ranks wait because they are more than the cores."""
    return 1e3 * result["seconds"] * min(1.0, len(os.sched_getaffinity(0)) / result["ranks"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=50_000, help="of each rank")
    parser.add_argument("--ratio", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--chart", default=str(ROOT / "docs" / "scaling.png"))
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        sys.path.insert(0, str(ROOT / "benchmarks"))
        measure(args.classes, args.ratio, args.steps)
        return
    results = [launch(ranks, args) for ranks in RANKS]
    print("| ranks | classes | G | ms a step | core ms of a rank | kB received: features, statistics, gradients |")
    print("| --- | --- | --- | --- | --- | --- |")
    for one in results:
        moved = ", ".join(f"{one['moved'].get(name, 0) / 1e3:.1f}" for name in PARTS)
        ranks, milliseconds = one["ranks"], 1e3 * one["seconds"]
        print(
            f"| {ranks} | {ranks * args.classes:,} | {64 * ranks} | {milliseconds:.0f} | {core_milliseconds(one):.0f} "
            f"| {moved} |"
        )
    draw(args.chart, results, args)
    print(f"chart: {args.chart}")


if __name__ == "__main__":
    main()
