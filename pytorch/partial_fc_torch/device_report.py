"""Lines that describe the device and the precision of a training, for its log and for check.sh."""

from pathlib import Path

import torch

from partial_fc.layer.tiling import LOGITS_CACHE_MB
from partial_fc.utils.options import options_of
from partial_fc.utils.text import amount, plural

from .device_defaults import gpu_facts, layer_type, suitable_tile_classes

DRIVER = Path("/sys/module/nvidia/version")


def device_line(device: torch.device) -> str:
    """Returns the name, compute capability and free memory of a GPU, or the threads of a CPU; driver and build."""
    gpu = gpu_facts(device)
    if gpu is None:
        return f"CPU with {plural(torch.get_num_threads(), 'thread')}, PyTorch {torch.__version__}"
    free, _ = torch.cuda.mem_get_info(device)
    try:
        driver = DRIVER.read_text().strip()  # such as 580.65.06
    except OSError:  # in some containers
        driver = "unknown"
    return (
        f"GPU {gpu.name}, compute capability {'.'.join(map(str, gpu.capability))}, {amount(free)} of "
        f"{amount(gpu.memory)} free, driver {driver}, PyTorch {torch.__version__} for CUDA {torch.version.cuda}"
    )


def precision_line(settings, device: torch.device, ranks: int) -> str:
    """Returns the types in which backbone, layer and gradients are computed, and the device's default sizes."""
    backbone_type = "float16" if settings.fp16 else "bfloat16" if settings.bf16 else "float32"
    options, compiled = options_of(settings, "layer_options"), options_of(settings, "network_options").compile
    tile = options.tile_classes or suitable_tile_classes(device, settings.batch_size * ranks, settings.embedding_size)
    automatic = options.logits_cache_mb < 0
    limit = f"up to {LOGITS_CACHE_MB if automatic else options.logits_cache_mb} MiB"
    cache = "as far as memory is free" if automatic and gpu_facts(device) else limit
    tiles = f"tiles of {plural(tile, 'class', 'classes')}, logits cached {cache}"
    if gpu_facts(device) and options.kernel != "torch":
        tiles = f"kernels if they can be used, which the first step tells, otherwise {tiles}"
    parts = [
        f"backbone in {backbone_type}{', compiled' if compiled else ''}",
        f"its gradients averaged in {settings.gradient_dtype}" if ranks > 1 else "",
        f"layer in {layer_type(options.dtype, gpu_facts(device))}",
        f"class centers stored in {options.center_dtype}" if options.center_dtype != "float32" else "",
        tiles,
    ]
    return ", ".join(part for part in parts if part)
