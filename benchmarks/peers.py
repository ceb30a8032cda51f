"""A step of the layer beside other ways to train the same centers, in one process on a CPU, measured in turn.

    .venv-torch/bin/python benchmarks/peers.py [--classes 50000] [--steps 12]

- floor: the three matrix products of a step, and one pass over its centers and momentum
- textbook: normalized copies, a dense product, a one-hot matrix and autograd, as in arcface_torch; also compiled by
  torch.compile, which needs a compiler
- linear_cross_entropy: PyTorch's function of this name (2.13 and newer) on normalized copies; it has no margin

Prints the median processor time of a step of each in ms, and relative to PartialFC. Other work on the machine changes
it little. benchmarks/gpu.py compares with further peers on a GPU.
"""

import argparse
import functools
import sys
import time

import gpu_layers
import layer_torch
import numpy as np
import torch
from gpu_layers import textbook

sys.path.insert(0, str(layer_torch.ROOT))

from benchmarks.host import cpu_name  # noqa: E402
from partial_fc.utils.tables import markdown_table  # noqa: E402

CPU = torch.device("cpu")


def compiled(classes: int, ratio: float, device):
    layer = textbook(classes, ratio, device)
    layer.compile()
    return layer


def linear_cross_entropy(classes: int, ratio: float, device):
    layer = gpu_layers.linear_cross_entropy(classes, ratio, device)
    layer.dtype = torch.float32
    return layer


PEERS = {
    "PartialFC": layer_torch.partial_fc,
    "PartialFC, bfloat16": functools.partial(layer_torch.partial_fc, layer_dtype="bfloat16"),
    "textbook": textbook,
    "textbook, compiled": compiled,
    "linear_cross_entropy": linear_cross_entropy,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=50_000)
    parser.add_argument("--ratios", type=float, nargs="+", default=[1.0, 0.1])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(1)
    layer_torch.BATCH = args.batch
    rows = []
    for ratio in args.ratios:
        # The sampled centers of a compiled step have other shapes, and each compilation takes a minute.
        names = [name for name in PEERS if ratio == 1 or "compiled" not in name]
        steps = {name: layer_torch.trainer(PEERS[name](args.classes, ratio, CPU), CPU) for name in names}
        seconds: dict[str, list[float]] = {name: [] for name in ("floor", *names)}
        for batch in layer_torch.batches(args.classes, args.steps + 2, CPU):
            for name, step in steps.items():
                start = time.process_time()
                step(batch)
                seconds[name].append(time.process_time() - start)
            seconds["floor"].append(layer_torch.floor(args.classes, ratio, CPU))
        medians = {name: float(np.median(each[2:])) for name, each in seconds.items()}
        for name, median in medians.items():
            relative = f"{median / medians['PartialFC']:.2f}"
            rows.append([f"{args.classes:,}", f"{ratio:g}", name, f"{1000 * median:.1f}", relative])
    print(cpu_name())
    print("\n".join(markdown_table(["classes", "r", "form", "ms", "relative to PartialFC"], rows)))


if __name__ == "__main__":
    main()
