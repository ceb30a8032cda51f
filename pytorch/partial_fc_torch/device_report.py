"""What a training computes on and how, in lines for its log and for check.sh."""

from pathlib import Path

import torch

from partial_fc.layer.tiling import LOGITS_CACHE_MB
from partial_fc.utils.options import options_of
from partial_fc.utils.text import amount, plural

from .device_defaults import GpuFacts, gpu_facts, layer_type, suitable_tile_classes

DRIVER = Path("/sys/module/nvidia/version")


def device_line(device: torch.device) -> str:
    """Returns name, compute capability and free memory of a GPU, or the threads of a CPU; driver and build."""
    gpu = gpu_facts(device)
    if gpu is None:
        return f"CPU with {plural(torch.get_num_threads(), 'thread')}, PyTorch {torch.__version__}"
    free, _ = torch.cuda.mem_get_info(device)
    build = f"PyTorch {torch.__version__} for CUDA {torch.version.cuda}"
    return f"{gpu_text(gpu, free)}, driver {driver_version()}, {build}"


def gpu_text(gpu: GpuFacts, free: int) -> str:
    """Returns name, compute capability and free memory of a GPU."""
    capability = ".".join(map(str, gpu.capability))
    return f"GPU {gpu.name}, compute capability {capability}, {amount(free)} of {amount(gpu.memory)} free"


def driver_version() -> str:
    """Returns the version of NVIDIA's driver, such as 580.65.06; "unknown" where the kernel does not show it."""
    try:
        return DRIVER.read_text().strip()
    except OSError:
        return "unknown"


def precision_line(settings, device: torch.device, ranks: int) -> str:
    """Returns the types in which backbone, layer and gradients are computed, and what was chosen for the device."""
    kind = "float16" if settings.fp16 else "bfloat16" if settings.bf16 else "float32"
    options, compiled = options_of(settings, "layer_options"), options_of(settings, "network_options").compile
    batch, size = settings.batch_size * ranks, settings.embedding_size
    tile = options.tile_classes or suitable_tile_classes(device, batch, size)
    chosen = options.logits_cache_mb < 0
    limit = f"up to {LOGITS_CACHE_MB if chosen else options.logits_cache_mb} MiB"
    cache = "as far as memory is free" if chosen and gpu_facts(device) else limit
    parts = [
        f"backbone in {kind}{', compiled' if compiled else ''}",
        f"its gradients averaged in {settings.gradient_dtype}" if ranks > 1 else "",
        f"layer in {layer_type(options.dtype, gpu_facts(device))}",
        f"without fused kernels: tiles of {plural(tile, 'class', 'classes')}, logits cached {cache}",
    ]
    return ", ".join(part for part in parts if part)
