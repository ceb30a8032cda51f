"""Checks of the layer for benchmarks/gpu.py: comparison with float64 on the CPU, and places where the host waits."""

import itertools
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from partial_fc_torch import CombinedMarginLoss, PartialFC, PartialFC_V2

MARGINS = ((1.0, 0.5, 0.0), (1.0, 0.0, 0.4), (0.9, 0.4, 0.15), (2.0, 1.0, 0.1))
# Limits of the gradients' relative error after three steps, a few roundings of each type.
TOLERANCES = {"float32": 1e-5, "tf32": 1e-2, "float16": 5e-3, "bfloat16": 5e-2}
PLACES: tuple[dict[str, object], ...] = ({}, {"tile_classes": 64, "logits_cache_mb": 0}, {"on_host": True})
FORMS = [
    *({"layer_dtype": dtype, "layer_kernel": "torch", **place} for dtype in TOLERANCES for place in PLACES),
    *({"layer_dtype": dtype, "layer_kernel": "mm"} for dtype in TOLERANCES),
    *({"layer_dtype": dtype, "layer_kernel": "triton"} for dtype in ("float16", "bfloat16")),
    {"layer_dtype": "float16", "layer_kernel": "mm", "unit_copy": False},
]


def small_layers(device, margins, ratio: float, form):
    """Returns a PartialFC and a PartialFC_V2, which has no centers on the host."""
    sizes = {"num_classes": 300, "sample_rate": ratio, "embedding_size": 64}
    loss, arguments = CombinedMarginLoss(16.0, *margins), {"device": device, **form}
    layer = PartialFC(loss, lr=0.1, **sizes, **arguments)
    arguments.pop("on_host", None)
    return layer, PartialFC_V2(loss, **sizes, **arguments)


def steps(layers, device, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Yields losses and gradients of three steps of both layers, and then centers and momentum."""
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
    """Returns the largest error relative to the largest expected element."""
    return float((found.cpu() - expected).abs().max() / expected.abs().max())


def differences(device, margins: Sequence[tuple[float, float, float]]) -> list[str]:
    """Returns the forms of the layer that differ too much from float64 on the CPU."""
    failed = []
    for margin, ratio in itertools.product(margins, (1.0, 0.3)):
        expected = list(steps([one.double() for one in small_layers("cpu", margin, ratio, {})], "cpu", torch.float64))
        for form in FORMS:
            try:
                found = steps(small_layers(device, margin, ratio, form), device, torch.float32)
                error = max(map(relative_error, found, expected))
                reason = "" if error <= TOLERANCES[form["layer_dtype"]] else f"{error:.2g}"
            except Exception as error:  # report the other forms, too
                reason = f"{type(error).__name__}: {error}"
            if reason:
                failed.append(f"margins {margin}, r = {ratio}, {form}: {reason}")
    return failed


def waits(device) -> list[str]:
    """Returns where the host waits for the GPU in a sampled step, except for the event of the statistics."""
    layer, _ = small_layers(device, MARGINS[0], 0.3, {})
    features, labels = torch.randn(32, 64, device=device), torch.arange(32)
    layer.step(features, labels)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            layer.step(features, labels)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return [f"{each.filename}:{each.lineno}" for each in caught if "called a synchronizing" in str(each.message)]
