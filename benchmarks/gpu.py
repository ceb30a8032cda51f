"""What one GPU does: checks of the layer, then its speed and memory, that of backbones, and of reading images.

    python benchmarks/gpu.py                      # needs PyTorch and NumPy, and no data set
    python benchmarks/gpu.py --json gpu.json      # written after each part

It is meant to take less than 10 minutes, which was not measured on a GPU yet. The checks compare all forms of the layer
with the same steps in float64 on the CPU. Without a GPU everything runs on the CPU, which takes hours, but for --quick:
tiny sizes, for tests. The part about reading needs OpenCV.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import itertools
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "pytorch"), str(ROOT / "benchmarks")]

import layer_torch  # noqa: E402
from host import cpu_name  # noqa: E402

from partial_fc.utils.tables import markdown_table  # noqa: E402
from partial_fc_torch import CombinedMarginLoss, PartialFC, PartialFC_V2, get_model  # noqa: E402
from partial_fc_torch.layer.products import products_of  # noqa: E402
from partial_fc_torch.pixels import normalized  # noqa: E402

THREADS = 16  # that decode
HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}
WARM_UP = 3  # steps


class Sizes(NamedTuple):
    """What is measured.

    Attributes:
        cases: (classes, sample ratio) of the layer.
        networks: backbones.
        batch: images of a step.
        identities: classes of the trainings with a backbone.
        steps: that are timed.
    """

    cases: tuple[tuple[int, float], ...]
    networks: tuple[str, ...]
    batch: int
    identities: int
    steps: int


FULL = Sizes(((1_000_000, 1.0), (10_000_000, 0.1), (100_000, 1.0)), ("r50", "r100"), 128, 100_000, 10)
QUICK = Sizes(((1000, 1.0), (1000, 0.1)), ("small",), 2, 100, 1)


# Checks --------------------------------------------------------------------------------------------

MARGINS = ((1.0, 0.5, 0.0), (1.0, 0.0, 0.4), (0.9, 0.4, 0.15), (2.0, 1.0, 0.1))
FORMS: tuple[dict[str, int], ...] = ({}, {"tile_classes": 64, "logits_cache_mb": 0}, {"on_host": True})
# Largest error of the gradients beside their largest element, after three steps: some roundings of each type.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 5e-2}


def small_layers(device, margins, ratio: float, dtype: torch.dtype, form: dict[str, int]):
    """A PartialFC and a PartialFC_V2, which has no centers on the host."""
    sizes = {"num_classes": 300, "sample_rate": ratio, "embedding_size": 64}
    loss, arguments = CombinedMarginLoss(16.0, *margins), {"device": device, "layer_dtype": dtype, **form}
    layer = PartialFC(margin_softmax=loss, **sizes, **arguments)
    layer.learning_rate = 0.1
    return layer, PartialFC_V2(loss, **sizes, **{**arguments, "on_host": False})


def steps(layers, device, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Yields what three steps compute: losses and gradients of both layers, and then centers and momentum."""
    rng = np.random.default_rng(0)
    layer, layer_v2 = layers
    for _ in range(3):
        features = torch.from_numpy(rng.standard_normal((32, 64))).to(device, dtype)
        labels = torch.from_numpy(rng.integers(0, 300, 32))
        gradient, loss = layer.step(features, labels)
        yield from (loss, gradient)
        features.requires_grad_()
        layer_v2.weight.grad = None
        loss = layer_v2(features, labels)
        loss.backward()
        yield from (loss.detach(), features.grad, layer_v2.weight.grad)
    layer.synchronize()
    yield from (layer.weight.detach(), layer.weight_mom)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest error beside the largest expected element."""
    return float((found.cpu() - expected).abs().max() / expected.abs().max())


def check(device) -> list[str]:
    """Compares all forms of the layer with float64 on the CPU; returns the cases that differ too much."""
    failed = []
    for margins, ratio in itertools.product(MARGINS, (1.0, 0.3)):
        reference = [layer.double() for layer in small_layers("cpu", margins, ratio, torch.float32, {})]
        expected = list(steps(reference, "cpu", torch.float64))
        for form, dtype in itertools.product(FORMS, TOLERANCES):
            found = steps(small_layers(device, margins, ratio, dtype, form), device, torch.float32)
            error = max(map(relative_error, found, expected))
            if not error <= TOLERANCES[dtype]:
                failed.append(f"margins {margins}, r = {ratio}, {dtype}, {form}: {error:.2g}")
    return failed


def waits(device) -> list[str]:
    """Where the host waits for the GPU in a sampled step, beside the event of the statistics, which is not reported."""
    layer = small_layers(device, MARGINS[0], 0.3, torch.float32, {})[0]
    features, labels = torch.randn(32, 64, device=device), torch.arange(32)
    layer.step(features, labels)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            layer.step(features, labels)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return [
        f"{warning.filename}:{warning.lineno}" for warning in caught if "called a synchronizing" in str(warning.message)
    ]


# The layer -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def tf32(enabled: bool) -> Iterator[None]:
    """A context in which float32 products may round their factors to TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if enabled else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


MEASURED = (("textbook", ("float32", "TF32")), ("PartialFC", ("float32", "TF32", "bfloat16", "float16")))


def layer_steps(sizes: Sizes, device) -> list[dict[str, Any]]:
    """Seconds and bytes of a step of each form; None where the memory does not suffice."""
    rows = []
    for (classes, ratio), (form, types) in itertools.product(sizes.cases, MEASURED):
        release(device)
        measured = dict.fromkeys(types, (None, None))
        with contextlib.suppress(torch.OutOfMemoryError):
            layer = layer_torch.FORMS[form](classes, ratio, device)  # once, as drawing its centers takes long
            step = layer_torch.trainer(layer, device)
            for name in types:
                if name in HALF:
                    softmax = layer._softmax
                    softmax.products = softmax.passes.products = products_of(HALF[name], layer_torch.SCALE)
                with tf32(name == "TF32"):
                    measured[name] = layer_torch.measure_step(step, classes, sizes.steps, device)
        rows += [
            {"classes": classes, "ratio": ratio, "form": form, "type": name, "seconds": seconds, "bytes": nbytes}
            for name, (seconds, nbytes) in measured.items()
        ]
    return rows


def profile(classes: int, device) -> list[dict[str, Any]]:
    """The ten kernels that take longest in three steps of the layer."""
    release(device)
    step = layer_torch.trainer(layer_torch.partial_fc(classes, 1.0, device), device)
    data = list(layer_torch.batches(classes, 4, device))
    step(data[0])
    with torch.profiler.profile() as recorded:
        for batch in data[1:]:
            step(batch)
        layer_torch.synchronize(device)
    on_gpu = torch.device(device).type == "cuda"

    def seconds(event) -> float:
        return (event.self_device_time_total if on_gpu else event.self_cpu_time_total) / 1e6 / 3

    def is_kernel(event) -> bool:  # on a GPU operators and annotations have the times of their kernels once more
        return not on_gpu or (event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation)

    longest = sorted(filter(is_kernel, recorded.key_averages()), key=seconds, reverse=True)[:10]
    return [{"kernel": event.key, "calls": event.count // 3, "seconds": seconds(event)} for event in longest]


# Backbones and reading -----------------------------------------------------------------------------


def network_step(network: str, half: bool, identities: int, device) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """A training step on images (B, 3, 112, 112) uint8 and labels, on the host. Its time counts: it scales no loss."""
    backbone = get_model(network).to(device, memory_format=torch.channels_last)
    layer = PartialFC(margin_softmax=CombinedMarginLoss(64.0, 1.0, 0.5, 0.0), num_classes=identities, device=device)
    layer.learning_rate = 1e-3
    optimizer = torch.optim.SGD(backbone.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        pixels = normalized(images.to(device, non_blocking=True)).contiguous(memory_format=torch.channels_last)
        with torch.autocast(torch.device(device).type, torch.float16, enabled=half):
            features = backbone(pixels)
        gradient, _ = layer.step(features, labels)
        optimizer.zero_grad()
        features.backward(gradient.to(features.dtype))
        optimizer.step()

    return step


def speed(step, sizes: Sizes, device, read: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> tuple[float, float]:
    """Images/s, and the share of the time that was spent waiting for them."""
    waited = 0.0
    for number in range(WARM_UP + sizes.steps):
        if number == WARM_UP:
            layer_torch.synchronize(device)
            start, waited = time.perf_counter(), 0.0
        requested = time.perf_counter()
        images, labels = read()
        waited += time.perf_counter() - requested
        step(images, labels)
    layer_torch.synchronize(device)
    took = time.perf_counter() - start
    return sizes.steps * sizes.batch / took, waited / took


def backbone_speeds(sizes: Sizes, device) -> list[dict[str, Any]]:
    """Images/s of training steps on the same images again and again."""
    images = torch.randint(0, 256, (sizes.batch, 3, 112, 112), dtype=torch.uint8)
    images = images.pin_memory() if torch.device(device).type == "cuda" else images
    labels, rows = torch.randint(0, sizes.identities, (sizes.batch,)), []
    for network, half in itertools.product(sizes.networks, (False, True)):
        release(device)
        step = network_step(network, half, sizes.identities, device)
        images_per_second, _ = speed(step, sizes, device, lambda: (images, labels))
        rows.append({"network": network, "type": "float16" if half else "float32", "speed": images_per_second})
    return rows


def reading(sizes: Sizes, device) -> list[dict[str, Any]]:
    """A training in float16 that reads and decodes its images."""
    from reading import draw_identity

    from partial_fc.data.batch_loader import FaceBatches
    from partial_fc.data.face_records import write_face_set
    from partial_fc_torch.image_data import face_data

    release(device)
    network, identities = sizes.networks[0], max(2, sizes.batch // 8)  # of 24 images
    with tempfile.TemporaryDirectory() as folder:
        write_face_set(folder, map(draw_identity, range(identities)), (112, 112))
        faces = FaceBatches(Path(folder) / "train.rec", sizes.batch, (112, 112), shuffle=True)
        data = face_data(faces, THREADS, pinned=torch.device(device).type == "cuda")

        def read() -> tuple[torch.Tensor, torch.Tensor]:
            try:
                images, labels = data.next()
            except StopIteration:
                data.reset()
                images, labels = data.next()
            return images, torch.from_numpy(labels)

        step = network_step(network, True, identities, device)
        images_per_second, waited = speed(step, sizes, device, read)
    return [{"network": network, "speed": images_per_second, "waiting": waited}]


# The program ---------------------------------------------------------------------------------------


def release(device) -> None:
    """Frees the memory of the part before, also what an error holds in a cycle."""
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()


def print_table(title: str, rows: list[dict[str, Any]]) -> None:
    cells = [[_text(value) for value in row.values()] for row in rows]
    print(f"\n{title}\n" + "\n".join(markdown_table(tuple(rows[0]), cells)), flush=True)


def _text(value) -> str:
    if value is None:
        return "out of memory"
    if isinstance(value, float):
        return f"{value / 1e9:.2f} GB" if value > 1e6 else f"{value:.4g}"
    return str(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, for tests")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else cpu_name()
    sizes = QUICK if args.quick else FULL
    classes = sizes.cases[0][0]
    layer_torch.BATCH = sizes.batch
    print(f"{name}, PyTorch {torch.__version__}")
    failed = check(device)
    print("\n  ".join([f"checks of the layer: {len(failed) or 'none'} failed", *failed]), flush=True)
    results: dict[str, Any] = {"device": name, "torch": torch.__version__, "failed": failed}
    if device == "cuda":
        results["waits"] = waits(device)
        print(f"the host waits for the GPU in a step for the statistics, and at: {', '.join(results['waits']) or '-'}")

    def measured(part: str, title: str, rows: list[dict[str, Any]]) -> None:
        results[part] = rows
        print_table(title, rows)
        if args.json:
            args.json.write_text(json.dumps(results, indent=1))

    measured("layer", f"a step of the layer, {sizes.batch} images", layer_steps(sizes, device))
    measured("kernels", f"the ten longest kernels of a step, {classes:,} classes", profile(classes, device))
    images = f"training, {sizes.batch} images, {sizes.identities:,} classes, images/s"
    measured("backbones", images, backbone_speeds(sizes, device))
    if importlib.util.find_spec("cv2") is None:
        print("\nreading was not measured: OpenCV is not installed")
    else:
        title = f"the same in float16 with {THREADS} threads that decode, share of waiting"
        measured("reading", title, reading(sizes, device))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
