"""Measures the GPU tables of docs/performance.md: the layer, backbones and links, checked against float64.

    python benchmarks/gpu.py | tee gpu.md    # prints Markdown; needs PyTorch and NumPy, and no data set
    python benchmarks/gpu.py --fake          # tiny sizes on the CPU, only to check that all parts run

Each part gets a fraction of ten minutes, and each row a fraction of the time that its part has left. Rows without time
are listed. Steps of the layer use one GPU. If several are visible, the links between them are measured.
"""

import argparse
import gc
import importlib.metadata
import itertools
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "pytorch"), str(ROOT / "benchmarks")]

import layer_torch  # noqa: E402
import torch  # noqa: E402
from gpu_checks import MARGINS, differences, waits  # noqa: E402
from gpu_layers import PATHS, compiled, product, uses_kernels  # noqa: E402
from gpu_links import links  # noqa: E402

from partial_fc.data.batch import Batch  # noqa: E402
from partial_fc.utils.tables import markdown_table  # noqa: E402
from partial_fc_torch import get_model  # noqa: E402
from partial_fc_torch.data_parallel import data_parallel  # noqa: E402
from partial_fc_torch.device_report import device_line  # noqa: E402
from partial_fc_torch.engine import TorchEngine  # noqa: E402
from partial_fc_torch.optimizers import build_optimizer  # noqa: E402

MINUTES, LAYER, BACKBONES, LINKS = 10, 0.6, 0.9, 0.98  # end of each part, as a fraction of the time
LEAST_STEPS = 3  # the first two compile and allocate
PACKAGES = ("triton", "liger-kernel", "cut-cross-entropy")


class Sizes(NamedTuple):
    """Sizes: (C, r, G) of the layer; (network, B, C) of a step; C, G of the profile; MB of links; maximum steps."""

    layers: Sequence[tuple[int, float, int]]
    networks: Sequence[tuple[str, int, Sequence[int]]]
    profile: tuple[int, int]
    megabytes: int
    steps: int


# Cheap rows come first and leave their time to the others.
FULL = Sizes(
    [(c, r, g) for c, g, r in itertools.product((100_000, 1_000_000, 10_000_000), (128, 1024), (0.1, 1.0))],
    [("r50", 128, (1000, 1_000_000)), ("r100", 128, (1000, 1_000_000))],
    (1_000_000, 1024),
    170,  # the gradients of r50
    12,
)
FAKE = Sizes([(300, 1.0, 8)], [("small", 2, (100,))], (300, 8), 1, LEAST_STEPS)


# The layer -----------------------------------------------------------------------------------------


def layer_rows(sizes: Sizes, end: float, device) -> Iterator[list[str]]:
    for (classes, ratio, batch), until in shares(sizes.layers, end):
        layer_torch.BATCH = batch

        def measure(path: str, classes=classes, ratio=ratio, until=until) -> str:
            if PATHS[path] is compiled and ratio < 1:
                return "-"  # each compilation takes up to a minute
            torch.backends.cuda.matmul.allow_tf32 = path.startswith("textbook, TF32")
            layer = PATHS[path](classes, ratio, device)
            data = layer_torch.batches(classes, sizes.steps, device)
            text = measured(layer_torch.trainer(layer, device), data, until, device, lambda ms: f"{ms:.2f} ms")
            return "not used" if path.startswith(("mm", "triton")) and not uses_kernels(layer) else text

        cells = [attempt(partial(measure, path), until, device) for path in PATHS]
        torch.backends.cuda.matmul.allow_tf32 = False
        yield [f"{classes:,}", str(ratio), str(batch), *cells]


def kernel_rows(sizes: Sizes, device) -> Iterator[list[str]]:
    """Yields rows of the ten kernels that take longest in three steps of the layer with its defaults."""
    classes, layer_torch.BATCH = sizes.profile
    step = layer_torch.trainer(product("auto", "auto")(classes, 1.0, device), device)
    data = list(layer_torch.batches(classes, 5, device))
    for batch in data[:2]:
        step(batch)
    with torch.profiler.profile() as recorded:
        for batch in data[2:]:
            step(batch)
        layer_torch.synchronize(device)
    on_gpu = device.type == "cuda"
    field = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    # On a GPU, operators and annotations include the times of their kernels.
    kinds = (torch.autograd.DeviceType.CUDA,) if on_gpu else tuple(torch.autograd.DeviceType.__members__.values())
    events = [one for one in recorded.key_averages() if one.device_type in kinds and not one.is_user_annotation]
    for event in sorted(events, key=lambda one: -getattr(one, field))[:10]:
        yield [f"`{event.key[:60]}`", str(event.count // 3), f"{getattr(event, field) / 3e3:.3f}"]


# Backbones and whole steps -------------------------------------------------------------------------

PRECISIONS: dict[str, tuple[torch.dtype | None, bool]] = {
    "bfloat16": (torch.bfloat16, False),
    "float16": (torch.float16, False),
    "float32": (None, False),
    "bfloat16, compiled": (torch.bfloat16, True),
}


def training(network: str, precision: str, batch: int, classes: int, steps: int, device) -> tuple[Callable, Iterator]:
    """Returns a step of TorchEngine and its batches, in the form of a layer for `seconds_of`."""
    autocast, compile_it = PRECISIONS[precision]
    backbone = get_model(network, num_features=layer_torch.EMBEDDING).to(device, memory_format=torch.channels_last)
    layer = product("auto", "auto")(classes, 1.0, device)
    # Only the time matters; with this rate no loss overflows.
    engine = TorchEngine(
        data_parallel(backbone, layer),
        layer,
        lambda update: (1e-3, 1e-3),
        optimizer=partial(build_optimizer, momentum=0.9, fused=device.type == "cuda"),
        autocast=autocast,
        compiled=compile_it,
    )
    images = torch.randint(0, 256, (batch, 3, 112, 112), dtype=torch.uint8)
    images = images.pin_memory() if device.type == "cuda" else images
    labels = torch.randint(0, classes, (steps, batch)).numpy()
    return lambda pair: engine.step(pair[1]), ((images.to(device), Batch(images, each)) for each in labels)


def backbone_rows(sizes: Sizes, end: float, device) -> Iterator[list[str]]:
    torch.backends.cudnn.benchmark = True  # as in the trainer
    # On a CPU, float16 and the compiler are refused or take minutes.
    names = PRECISIONS if device.type == "cuda" else ("float32",)
    # Compiling takes a minute or more, so only the first network is compiled.
    cases = [
        (network, name)
        for name, network in itertools.product(names, sizes.networks)
        if not PRECISIONS[name][1] or network is sizes.networks[0]
    ]
    for ((network, batch, classes), name), until in shares(cases, end):

        def measure(number: int, network=network, batch=batch, name=name, until=until) -> str:
            step, data = training(network, name, batch, number, sizes.steps, device)
            return measured(step, data, until, device, lambda ms: f"{1e3 * batch / ms:.0f} images/s")

        yield [network, str(batch), name, *(attempt(partial(measure, number), until, device) for number in classes)]


# Links ---------------------------------------------------------------------------------------------


def link_rows(sizes: Sizes, end: float, device) -> Iterator[list[str]]:
    visible = torch.cuda.device_count() if device.type == "cuda" else 2
    for size, until in shares([number for number in (2, 4, 8) if number <= visible], end):
        yield [str(size), attempt(partial(links, size, until, sizes.megabytes, device), until, device)]


# The program ---------------------------------------------------------------------------------------


def shares(cases: Sequence, end: float) -> Iterator[tuple]:
    """Yields each case with its deadline, an equal share of the time that is left until ``end``."""
    for number, case in enumerate(cases):
        now = time.monotonic()
        yield case, now + (end - now) / (len(cases) - number)


def measured(step: Callable, data: Iterable, until: float, device, text: Callable[[float], str]) -> str:
    """Returns the median time of as many steps as there is time for, as text, and the additional memory."""
    before = layer_torch.start_peak_on(device)
    enough = itertools.takewhile(
        lambda numbered: numbered[0] < LEAST_STEPS or time.monotonic() < until, enumerate(data)
    )
    seconds = layer_torch.seconds_of(step, (batch for _, batch in enough))
    return f"{text(1e3 * seconds)}, {(layer_torch.peak_on(device) - before) / 1e9:.2f} GB"


def attempt(measure: Callable[[], str], until: float, device) -> str:
    """Returns the measurement, or the error of a form that fails, so that the other forms are still measured."""
    if time.monotonic() > until:
        return "no time"
    gc.collect()  # an error's reference cycle may hold the memory of the previous part
    torch._dynamo.reset()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    try:
        return measure()
    except ImportError as error:
        return f"{error.name} missing"
    except torch.OutOfMemoryError:
        return "out of memory"
    except Exception as error:  # an error of a compiler, a driver or another library, shown in the table
        warn(error)
        return type(error).__name__


def warn(error: Exception) -> None:
    logging.warning("%s: %s", type(error).__name__, error)


class Notes(logging.Handler):
    """Returns the distinct warnings in order, such as that kernels were not used."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.texts[record.getMessage().splitlines()[0]] = None


def show(title: str, heading: Sequence[str], rows: Iterable[list[str]]) -> None:
    """Prints a table; after an error, the rows before it."""
    found = []
    try:
        for row in rows:
            found.append(row)
    except Exception as error:
        warn(error)
    print(f"\n{title}\n\n" + "\n".join(markdown_table(heading, found) if found else ["Not measured."]), flush=True)


def version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{package} missing"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fake", action="store_true", help="use tiny sizes on the CPU")
    fake = parser.parse_args().fake
    if not fake and not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU (bash setup-utils/check.sh says why); --fake runs on the CPU")
    start, device, sizes = time.monotonic(), torch.device("cpu" if fake else "cuda:0"), FAKE if fake else FULL
    minutes = 60 if fake else MINUTES  # tests run the fake one on busy machines; it ends much earlier
    end = lambda share: start + 60 * minutes * share  # noqa: E731
    logging.getLogger().addHandler(notes := Notes())
    if fake:
        layer_torch.EMBEDDING = 64
        print("FAKE: tiny sizes on a CPU. The figures say nothing about a GPU.\n")
    print(f"{device_line(device)}; {'; '.join(map(version, PACKAGES))}", flush=True)
    if not fake:
        print(f"cuDNN {torch.backends.cudnn.version()}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}")
    failed = differences(device, MARGINS[:1] if fake else MARGINS)
    print("\n- ".join([f"\nChecks against float64 on the CPU: {len(failed) or 'none'} failed.", *failed]), flush=True)
    if not fake:
        print(f"\nIn a step the host waits for the statistics, and at: {', '.join(waits(device)) or '-'}.")
    title = (
        "A step of the layer, and its memory beyond centers and momentum (cut-cross-entropy, Liger and "
        "linear_cross_entropy have no margin):"
    )
    show(title, ("classes", "r", "G", *PATHS), layer_rows(sizes, end(LAYER), device))
    profile = f"The longest kernels of a step, {sizes.profile[0]:,} classes, G = {sizes.profile[1]}:"
    show(profile, ("kernel", "calls", "ms"), kernel_rows(sizes, device))
    columns = [f"a step with {classes:,} classes" for classes in sizes.networks[0][2]]
    training_title = "Training steps on the same images, with the layer as it is by default:"
    show(training_title, ("network", "B", "type", *columns), backbone_rows(sizes, end(BACKBONES), device))
    link_title = f"Collectives of {sizes.megabytes} MB between the ranks, time and bandwidth of a link:"
    show(link_title, ("ranks", "collectives"), link_rows(sizes, end(LINKS), device))
    print("\n- ".join(["\nNotes:", *notes.texts, f"took {time.monotonic() - start:.0f} s"]))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
