"""Measures time and bytes of a step of the layer as classes and ranks grow together, on one host, in both trainers.

    python benchmarks/scaling.py                     # 1, 2 and 4 ranks of 50,000 classes each; writes docs/scaling.png
    python benchmarks/scaling.py --classes 20000 --ratio 0.1 --chart /tmp/scaling.png

The bytes are the sizes of arrays in Horovod's timeline and PyTorch's profiler.
"""

import argparse
import json
import math
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from benchmarks.host import cpu_name, run_ranks  # noqa: E402
from partial_fc.utils.tables import markdown_table  # noqa: E402

RANKS = (1, 2, 4)
TIMEOUT = 300
PARTS = {
    "features": "all-gather of features and labels",
    "softmax_statistics": "all-gather of statistics",
    "feature_gradient": "reduce-scatter of gradients",
}
LAUNCHERS = {
    "MXNet": ". setup-utils/env.sh && HOROVOD_TIMELINE=DYNAMIC mpirun -q -np {ranks} python",
    "PyTorch": ".venv-torch/bin/torchrun --standalone --nproc_per_node={ranks}",
}


def measure_mxnet(classes: int, ratio: float, steps: int) -> dict | None:
    """Measures on all ranks; returns the seconds of a step and the received bytes on rank 0, else None."""
    import horovod.mxnet as hvd
    import layer_mxnet
    import mxnet as mx

    from benchmarks.horovod_timeline import read_timeline
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
    return {"ranks": size, "seconds": seconds, "moved": moved} if hvd.rank() == 0 else None


def measure_torch(classes: int, ratio: float, steps: int) -> dict | None:
    """Like measure_mxnet."""
    import layer_torch
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    size = dist.get_world_size()
    step = layer_torch.trainer(layer_torch.partial_fc(classes * size, ratio, "cpu"), "cpu")
    seconds = layer_torch.seconds_of(step, layer_torch.batches(classes * size, steps + 2, "cpu"))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        for batch in layer_torch.batches(classes * size, 1, "cpu"):
            step(batch)
    moved = dict(zip(PARTS, received_torch(profile.events(), size)))
    own = {"ranks": size, "seconds": seconds, "moved": moved} if dist.get_rank() == 0 else None
    dist.destroy_process_group()
    return own


def received_torch(events, size: int) -> list[int]:
    """Returns the bytes that a rank receives in each float32 collective of the layer, in order."""
    received = []
    for event in events:
        if event.name in ("c10d::_allgather_base_", "c10d::alltoall_base_"):
            received.append(4 * math.prod(event.input_shapes[0]) * (size - 1) // size)
    return received


MEASURES = {"MXNet": measure_mxnet, "PyTorch": measure_torch}


def launch(trainer: str, ranks: int, args: argparse.Namespace) -> dict:
    """Runs the measurement with a number of ranks."""
    command = f"{LAUNCHERS[trainer].format(ranks=ranks)} benchmarks/scaling.py --measure {trainer}"
    command += f" --classes {args.classes} --ratio {args.ratio} --steps {args.steps}"
    return run_ranks(command, TIMEOUT)


def draw(path: str, results: dict[str, list[dict]], args: argparse.Namespace) -> None:
    """Draws milliseconds and kilobytes over the number of classes, by trainer."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.4))
    width = 0.8 / len(results)
    for number, (trainer, rows) in enumerate(results.items()):
        places = [row + number * width for row in range(len(rows))]
        left.bar(places, [core_milliseconds(one) for one in rows], width * 0.95, label=trainer)
        bottom = [0.0] * len(rows)
        for (name, what), color in zip(PARTS.items(), ("#4477aa", "#ee6677", "#228833")):
            height = [one["moved"].get(name, 0) / 1e3 for one in rows]
            label = what if number == 0 else None
            right.bar(places, height, width * 0.95, bottom=bottom, label=label, color=color)
            bottom = [low + more for low, more in zip(bottom, height)]
    for axes, title, unit in (
        (left, "core time of a rank in a step", "ms"),
        (right, f"received by a rank in a step ({', then '.join(results)})", "kB"),
    ):
        middle = (len(results) - 1) * width / 2
        axes.set_xticks([row + middle for row in range(len(RANKS))], [f"{ranks} x {args.classes:,}" for ranks in RANKS])
        axes.set_title(title, fontsize=10)
        axes.set(ylabel=unit, xlabel="ranks x classes")
        axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def core_milliseconds(result: dict) -> float:
    """Returns the time of a step, without the time that ranks wait because there are more ranks than cores."""
    return 1e3 * result["seconds"] * min(1.0, len(os.sched_getaffinity(0)) / result["ranks"])


def cells(trainer: str, result: dict, classes: int) -> list[str]:
    """Returns the row of a result in the table."""
    ranks = result["ranks"]
    moved = [f"{result['moved'].get(name, 0) / 1e3:.1f}" for name in PARTS]
    times = [f"{1e3 * result['seconds']:.0f}", f"{core_milliseconds(result):.0f}"]
    return [trainer, f"{ranks}", f"{ranks * classes:,}", f"{64 * ranks}", *times, *moved]


HEADING = (
    "trainer",
    "ranks",
    "classes",
    "G",
    "ms",
    "core ms of a rank",
    "kB of features",
    "of statistics",
    "of gradients",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=50_000, help="classes per rank")
    parser.add_argument("--ratio", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--chart", default=str(ROOT / "docs" / "scaling.png"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", choices=MEASURES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        own = MEASURES[args.measure](args.classes, args.ratio, args.steps)
        if own is not None:
            print(json.dumps(own), flush=True)
        return
    results = {trainer: [launch(trainer, ranks, args) for ranks in RANKS] for trainer in LAUNCHERS}
    rows = [cells(trainer, one, args.classes) for trainer, all_ranks in results.items() for one in all_ranks]
    print(cpu_name())
    print("\n".join(markdown_table(HEADING, rows)))
    draw(args.chart, results, args)
    print(f"chart: {args.chart}")
    if args.json:
        args.json.write_text(json.dumps({"cpu": cpu_name(), "results": results}, indent=1))


if __name__ == "__main__":
    main()
