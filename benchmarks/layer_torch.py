"""Measures a step of the PyTorch trainer's layer with a trivial backbone, and its textbook form, for layer.py.

Rank 0 prints {form: [seconds per step, bytes in addition to centers and momentum]} as JSON. "floor" is the time for
the three products of a step and one pass over its centers and momentum on this machine. For centers in files:

    .venv-torch/bin/torchrun --nproc_per_node=2 benchmarks/layer_torch.py --classes 10000000 --ratio 0.01 --steps 60 \
        --folder /ssd/bank

For the time of a step with several labels per item, relative to one label, measured in turn:

    .venv-torch/bin/torchrun --standalone --nproc_per_node=2 benchmarks/layer_torch.py --classes 100000 --labels 8

For the processor time of an update of sampled rows by each optimizer of the centers, relative to SGD:

    .venv-torch/bin/torchrun --nproc_per_node=1 benchmarks/layer_torch.py --classes 200000 --ratio 0.1 --optimizers
"""

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "pytorch"), str(ROOT / "benchmarks")]

from host import resident, start_peak  # noqa: E402
from textbook_torch import TextbookPartialFC  # noqa: E402

from partial_fc.layer.center_states import center_widths  # noqa: E402
from partial_fc.layer.sharding import num_sampled, shard_of  # noqa: E402
from partial_fc.layer.tiling import tile_classes  # noqa: E402
from partial_fc_torch import CosFace, PartialFC, PartialFC_V2  # noqa: E402
from partial_fc_torch.layer.optimizers import OPTIMIZERS, optimizer_named  # noqa: E402
from partial_fc_torch.layer.rows import Centers, TileGradient, inverse_norms  # noqa: E402

BATCH, EMBEDDING, INPUTS, SCALE, MARGIN = 64, 512, 16, 64.0, 0.4
SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}
FLOOR_TILES = (1024, 2048, 4096)  # classes per product
Batch = tuple[torch.Tensor, torch.Tensor]


def textbook(classes: int, ratio: float, device) -> torch.nn.Module:
    return TextbookPartialFC(SCALE, MARGIN, EMBEDDING, classes, ratio, device)


def partial_fc(classes: int, ratio: float, device, **arguments) -> PartialFC:
    sizes = {"num_classes": classes, "sample_rate": ratio, "embedding_size": EMBEDDING}
    layer = PartialFC(margin_softmax=CosFace(SCALE, MARGIN), device=device, **sizes, **arguments)
    layer.learning_rate = SGD["lr"]
    return layer


def partial_fc_v2(classes: int, ratio: float, device) -> torch.nn.Module:
    return PartialFC_V2(CosFace(SCALE, MARGIN), EMBEDDING, classes, ratio, device=device)


FORMS = {
    "textbook": textbook,
    "PartialFC": partial_fc,
    "bfloat16": functools.partial(partial_fc, layer_dtype=torch.bfloat16),
    "16-bit centers": functools.partial(partial_fc, center_dtype=torch.bfloat16),
    "PartialFC_V2": partial_fc_v2,
}


def trainer(layer: torch.nn.Module, device) -> Callable[[Batch], None]:
    """Returns a function for a step of the layer with a linear backbone; all momentum is allocated."""
    network = torch.nn.Linear(INPUTS, EMBEDDING, device=device)
    if dist.is_initialized():
        network = torch.nn.parallel.DistributedDataParallel(network)
    trained = [*network.parameters(), *(one for one in layer.parameters() if one.requires_grad)]
    optimizer = torch.optim.SGD(trained, **SGD)
    for parameter in trained:
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    def step(batch: Batch) -> None:
        images, labels = batch
        loss = layer(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def batches(classes: int, steps: int, device, inputs: int = INPUTS) -> Iterator[Batch]:
    """Yields this rank's batches, the same for all forms."""
    rng = np.random.default_rng(dist.get_rank() if dist.is_initialized() else 0)
    for _ in range(steps):
        images = torch.from_numpy(rng.standard_normal((BATCH, inputs), np.float32))
        yield images.to(device), torch.from_numpy(rng.integers(0, classes, BATCH)).to(device)


def seconds_of(step: Callable[[Batch], None], data: Iterator[Batch]) -> float:
    """Returns the median seconds of a step on this rank, without the first two steps."""
    seconds = []
    for batch in data:
        meet(batch[0].device)
        start = time.perf_counter()
        step(batch)
        synchronize(batch[0].device)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds[2:]))


def measure(form: str, classes: int, ratio: float, steps: int, device) -> tuple[float, float]:
    """Returns the seconds of a step, and its bytes in addition to centers and momentum; maxima over the ranks."""
    return measure_step(trainer(FORMS[form](classes, ratio, device), device), classes, steps, device)


def measure_step(step: Callable[[Batch], None], classes: int, steps: int, device) -> tuple[float, float]:
    """Like measure, for a training step."""
    before = start_peak_on(device)
    seconds = seconds_of(step, batches(classes, steps + 2, device))
    return largest(seconds), largest(peak_on(device) - before)


def floor(classes: int, ratio: float, device) -> float:
    """Returns the seconds of a step's products with torch.mm and one pass over its centers and momentum."""
    size = dist.get_world_size() if dist.is_initialized() else 1
    sampled, batch = num_sampled(shard_of(classes, 0, size).size, ratio), BATCH * size
    meet(device)
    per_class = min(products(batch, min(tile, sampled), device) for tile in (*FLOOR_TILES, sampled))
    return largest(per_class * sampled + update_pass(sampled, device))


def products(batch: int, tile: int, device) -> float:
    """Returns the seconds of a tile's three products, per class."""
    features, centers = torch.randn(batch, EMBEDDING, device=device), torch.randn(tile, EMBEDDING, device=device)
    logits, d_features, d_centers = torch.empty(batch, tile, device=device), features.clone(), centers.clone()

    def run() -> None:
        torch.mm(features, centers.t(), out=logits)
        torch.mm(logits, centers, out=d_features)
        torch.mm(logits.t(), features, out=d_centers)

    return fastest(run, device) / tile


def update_pass(rows: int, device, block: int = 256) -> float:
    """Returns the seconds to read and write centers and momentum once, in blocks that stay in the cache of a CPU."""
    weight, momentum = torch.ones(2, rows, EMBEDDING, device=device)
    block = block if weight.device.type == "cpu" else rows
    blocks = list(zip(weight.split(block), momentum.split(block)))

    def run() -> None:
        for centers, moved in blocks:
            moved.mul_(0.9).add_(centers, alpha=5e-4)
            centers.sub_(moved, alpha=0.1)

    return fastest(run, device)


def fastest(run: Callable[[], None], device, times: int = 5) -> float:
    seconds = []
    for _ in range(times):
        synchronize(device)
        start = time.perf_counter()
        run()
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def optimizer_times(classes: int, ratio: float) -> dict[str, float]:
    """Returns the minimum processor time of an update by each optimizer, relative to SGD."""
    rows, size = num_sampled(classes, ratio), tile_classes(BATCH, EMBEDDING, "cpu")
    tiles = torch.randperm(classes)[:rows].sort().values.split(size)
    weight, gradient = torch.randn(classes, EMBEDDING), torch.randn(size, EMBEDDING)
    seconds = {}
    for name in OPTIMIZERS:
        optimizer, states = optimizer_named(name, SGD["weight_decay"]), {}
        for state, width in center_widths(EMBEDDING, optimizer.states).items():
            states[state] = torch.zeros(classes, width)
        centers, measured = Centers(states.pop("weight").copy_(weight), states), []
        for _ in range(7):
            measured.append(0.0)
            for index in tiles:
                copies = centers.weight[index]
                tile = TileGradient(index, copies, inverse_norms(copies), gradient[: len(index)].clone(), 1 / BATCH)
                start = time.thread_time()
                optimizer.update(centers, tile, learning_rate=1e-3)
                measured[-1] += time.thread_time() - start
        seconds[name] = min(measured)
    return {name: round(own / seconds["sgd"], 2) for name, own in seconds.items()}


def labels_times(classes: int, ratio: float, labels: int, steps: int) -> dict[str, float]:
    """Returns the seconds of a step with one label and with several labels per item, and the median of their ratios."""
    layers = {count: partial_fc(classes, ratio, "cpu") for count in (1, labels)}
    seconds: dict[int, list[float]] = {count: [] for count in layers}
    for features, first in batches(classes, steps + 2, "cpu", EMBEDDING):
        more = torch.randint(classes, (len(first), labels - 1), generator=torch.Generator().manual_seed(int(first[0])))
        for count, layer in layers.items():
            meet("cpu")
            start = time.perf_counter()
            layer.step(features, torch.cat([first[:, None], more], dim=1)[:, :count])
            seconds[count].append(largest(time.perf_counter() - start))
    one, several = (np.array(seconds[count][2:]) for count in layers)
    return {
        "1": float(np.median(one)),
        f"{labels}": float(np.median(several)),
        "ratio": float(np.median(several / one)),
    }


def start_peak_on(device) -> int:
    """Resets the peak memory of the device; returns the bytes that are allocated now."""
    if torch.device(device).type == "cpu":
        return start_peak()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def peak_on(device) -> int:
    return resident("VmHWM") if torch.device(device).type == "cpu" else torch.cuda.max_memory_allocated(device)


def synchronize(device) -> None:
    if torch.device(device).type != "cpu":
        torch.cuda.synchronize(device)


def meet(device) -> None:
    """Waits for the other ranks."""
    synchronize(device)
    if dist.is_initialized():
        dist.barrier()


def largest(value: float) -> float:
    """Returns the maximum over the ranks."""
    values = torch.tensor(float(value), dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(values, dist.ReduceOp.MAX)
    return values.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--ratio", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--optimizers", action="store_true", help="only time the optimizers of the centers")
    parser.add_argument("--labels", type=int, help="only compare this number of labels per item with one")
    parser.add_argument("--folder", help="keep the centers in files here; only measures PartialFC and 16-bit centers")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    case = args.classes, args.ratio
    if args.optimizers:
        measured = optimizer_times(*case)
    elif args.labels:
        measured = labels_times(*case, args.labels, args.steps)
    elif args.folder:
        measured = {}
        for form in ("PartialFC", "16-bit centers"):
            step = trainer(FORMS[form](*case, "cpu", folder=args.folder), "cpu")
            seconds, _ = measure_step(step, args.classes, args.steps, "cpu")
            measured[form] = seconds, largest(resident("RssAnon"))
    else:
        measured = {"floor": floor(*case, "cpu"), **{name: measure(name, *case, args.steps, "cpu") for name in FORMS}}
    if dist.get_rank() == 0:
        print(json.dumps(measured), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
