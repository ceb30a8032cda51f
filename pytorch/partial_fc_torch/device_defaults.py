"""Defaults for a GPU, as functions of its properties. The trainer and the layer read them when they are built.

Shapes: G global batch, E embedding, T centers of a tile.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from partial_fc.layer.tiling import bytes_of_class, tile_classes
from partial_fc.utils.text import plural

# The operators of a tile read or write its bytes 17 times in 51 kernels (counted with fake tensors). Launching a kernel
# typically takes the host 6 us. None of this was measured on a GPU.
PASSES, LAUNCHES, LAUNCH_SECONDS = 17, 51, 6e-6


class GpuFacts(NamedTuple):
    """The properties of a GPU that defaults depend on."""

    name: str  # as the driver reports it
    capability: tuple[int, int]  # (major, minor)
    memory: int  # bytes
    cache: int  # bytes of the L2 cache
    bandwidth: float  # of its memory, in bytes per second; 0 if unknown
    processors: int  # number of multiprocessors


@functools.cache
def gpu_facts(device: torch.device) -> GpuFacts | None:
    """Returns the properties of a GPU; None for a CPU, and for the device of a fake tensor on a host without GPUs."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    gpu = torch.cuda.get_device_properties(device)
    # Clock in kHz, width in bits; two transfers per clock cycle. Older builds and drivers lack one of the attributes.
    bandwidth = 2e3 * getattr(gpu, "memory_clock_rate", 0) * getattr(gpu, "memory_bus_width", 0) / 8
    capability = gpu.major, gpu.minor
    return GpuFacts(gpu.name, capability, gpu.total_memory, gpu.L2_cache_size, bandwidth, gpu.multi_processor_count)


def layer_type(requested: torch.dtype | str, gpu: GpuFacts | None) -> torch.dtype | str:
    """Returns the type of the layer's products.

    "auto" selects float16 on GPUs with TF32: it has as many bits and twice the speed, and it has the range, as all
    operands are unit rows or gradients multiplied by `float16_factor`. Otherwise it selects float32.
    """
    if requested != "auto":
        return requested
    return "float16" if has_tf32(gpu) else "float32"


def has_tf32(gpu: GpuFacts | None) -> bool:
    """Returns whether a GPU has products in TF32."""
    return gpu is not None and gpu.capability >= (8, 0)


@functools.cache
def suitable_tile_classes(device: torch.device, batch: int, embedding_size: int) -> int:
    """Returns the default number of classes T of a tile on a device, a multiple of 64."""
    if device.type == "cpu":
        return tile_classes(batch, embedding_size, "cpu")
    return gpu_tile_classes(batch, embedding_size, gpu_facts(device))


def gpu_tile_classes(batch: int, embedding_size: int, gpu: GpuFacts | None) -> int:
    """Returns the default number of classes T of a tile on a GPU, a multiple of 64.

    A tile that fits into the L2 cache is read and written faster than one in memory. This pays off on cards with a
    large cache and slow memory; on others, launching the kernels of a small tile would take longer than running them.

    Args:
        batch, embedding_size: G and E.
        gpu: None if its properties are unknown.
    """
    large, class_bytes = tile_classes(batch, embedding_size, "gpu"), bytes_of_class(batch, embedding_size)
    if gpu is None or not gpu.bandwidth:
        return large
    # A product needs at least two blocks of 128 x 128 results per multiprocessor.
    smallest = 2 * gpu.processors * 128 * 128 // max(batch, 128)
    size = -(-max(smallest, gpu.cache * 3 // 4 // class_bytes) // 64) * 64
    # A factor of 2, because the host has other work and small kernels lose some of what the cache saves.
    keeps_busy = 2 * LAUNCHES * LAUNCH_SECONDS < PASSES * size * class_bytes / gpu.bandwidth
    return size if size * class_bytes <= gpu.cache and keeps_busy else large


def gpu_of_rank(local_rank: int, visible: int) -> int:
    """Returns the index of a rank's GPU among its visible GPUs.

    Launchers such as srun with --gpus-per-task show each rank a different single GPU, whose index is then 0 on every
    rank; see require_different_gpus.
    """
    return 0 if visible == 1 else local_rank


def require_enough_gpus(local_size: int, visible: int) -> None:
    """Raises ValueError if a rank sees more than one GPU, but too few for the ranks of its host."""
    if 1 < visible < local_size:
        raise ValueError(
            f"{local_size} ranks on this host, but it has {visible} GPUs: start one rank per GPU, or train on the CPU "
            "with backend=gloo"
        )


def require_different_gpus(gpus: Sequence[tuple[str, str]]) -> None:
    """Raises ValueError if two ranks have the same GPU, given the (host name, GPU UUID) of each rank."""
    ranks: dict[tuple[str, str], list[str]] = {}
    for rank, gpu in enumerate(gpus):
        ranks.setdefault(gpu, []).append(str(rank))
    for (host, uuid), sharing in ranks.items():
        if len(sharing) > 1:
            raise ValueError(
                f"ranks {', '.join(sharing)} on {host} have the same GPU {uuid} ({plural(len(ranks), 'GPU')} for "
                f"{len(gpus)} ranks): start one rank per GPU, and show each rank all GPUs of its host or a different "
                "one (CUDA_VISIBLE_DEVICES); or train on the CPU with backend=gloo"
            )
