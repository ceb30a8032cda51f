"""Measures the layer's fraction of a step in the training on words, in processor seconds. See docs/words.md.

    .venv-torch/bin/python benchmarks/words_step.py
    .venv-torch/bin/python benchmarks/words_step.py --quick

One process has the classes and the batch of both ranks, because the fraction does not depend on the split. The steps of
all cases take turns, so that other load affects all of them. Times are medians.
"""

import argparse
import itertools
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "pytorch")]

from benchmarks.host import cpu_name  # noqa: E402
from examples.words.lexemes import CODES, WIDTH  # noqa: E402
from examples.words.network import words  # noqa: E402
from partial_fc.utils.tables import markdown_table  # noqa: E402
from partial_fc_torch import CosFace, PartialFC  # noqa: E402

BATCH, EMBEDDING = 256, 128  # batch of settings.json on two ranks
RATE = 0.001  # what the network learns does not matter


def network_step(network: torch.nn.Module, optimizer: torch.optim.Optimizer, letters: torch.Tensor) -> None:
    """Runs everything but the layer: forward, backward from a fixed gradient, and update."""
    network(letters).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def layer_step(layer: PartialFC, features: torch.Tensor, labels: torch.Tensor) -> None:
    """Runs the layer: forward, backward to the features, and the update of its centers."""
    layer(features.requires_grad_(), labels).backward()


def seconds(step, *arguments) -> float:
    start = time.thread_time()
    step(*arguments)
    return time.thread_time() - start


def measure(cases: list[tuple[int, float]], rounds: int) -> tuple[float, dict[tuple[int, float], float]]:
    """Returns the median seconds of a step of the network, and of the layer for each number of classes and ratio."""
    network = words(EMBEDDING)
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE, momentum=0.9)
    layers = {}
    for classes, ratio in cases:
        sizes = {"num_classes": classes, "sample_rate": ratio, "embedding_size": EMBEDDING}
        layers[classes, ratio] = PartialFC(margin_softmax=CosFace(), **sizes)
        layers[classes, ratio].learning_rate = RATE
    own, of_layer = [], {case: [] for case in cases}
    random = np.random.default_rng(0)
    for _ in range(2 + rounds):
        letters = torch.from_numpy(random.integers(1, CODES, (BATCH, WIDTH), dtype=np.uint8))
        own.append(seconds(network_step, network, optimizer, letters))
        for case, layer in layers.items():
            features = torch.from_numpy(random.standard_normal((BATCH, EMBEDDING), np.float32))
            labels = torch.from_numpy(random.integers(0, case[0], BATCH))
            of_layer[case].append(seconds(layer_step, layer, features, labels))
    return statistics.median(own[2:]), {case: statistics.median(found[2:]) for case, found in of_layer.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", nargs="+", type=int, default=[10000, 50000, 173759])
    parser.add_argument("--ratios", nargs="+", type=float, default=[1.0, 0.3, 0.1, 0.03], help="sample_ratio")
    parser.add_argument("--rounds", type=int, default=20, help="steps per case")
    parser.add_argument("--quick", action="store_true", help="run two steps with 200 classes")
    args = parser.parse_args()
    if args.quick:
        args.classes, args.rounds = [200], 2
    torch.set_num_threads(1)
    network, layers = measure(list(itertools.product(args.classes, args.ratios)), args.rounds)
    print(f"{cpu_name()}, one thread; the network's step takes {1000 * network:.0f} ms")
    rows = [
        [f"{classes:,}", f"{ratio:g}", f"{1000 * own:.0f}", f"{100 * own / (own + network):.0f} %"]
        for (classes, ratio), own in layers.items()
    ]
    print("\n".join(markdown_table(["classes", "r", "layer, ms", "its share of a step"], rows)))


if __name__ == "__main__":
    main()
