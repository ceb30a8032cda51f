"""What suits a GPU, as functions of facts about it. The trainer, and the layer, ask for them where they are built.

Shapes: G global batch, E embedding, T centers of a tile.
"""

import functools
import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch

from partial_fc.layer.tiling import LOGITS_CACHE_MB, bytes_of_class, tile_classes
from partial_fc.utils.text import amount, plural

# The operations of a tile read or write its bytes 17 times, in 46 kernels, as tests/torch/test_fake_gpu.py counts. The
# host launches each in 6 us, a usual time. None of this was measured on a GPU.
PASSES, LAUNCHES, LAUNCH_SECONDS = 17, 46, 6e-6


class GpuFacts(NamedTuple):
    """What is known of a GPU."""

    name: str  # as the driver has it
    capability: tuple[int, int]  # (major, minor)
    memory: int  # bytes
    cache: int  # bytes of the L2 cache
    bandwidth: float  # bytes a second of its memory; 0 if not known
    processors: int  # number of multiprocessors


@functools.cache
def gpu_facts(device: torch.device) -> GpuFacts | None:
    """Returns the facts of a GPU; None for a CPU, and for a GPU that is not there, as that of a fake tensor."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(device)
    # Twice, as a clock moves data at both of its edges; kHz and bits. Older builds and drivers do not have both.
    bandwidth = 2e3 * getattr(found, "memory_clock_rate", 0) * getattr(found, "memory_bus_width", 0) / 8
    capability = found.major, found.minor
    return GpuFacts(
        found.name, capability, found.total_memory, found.L2_cache_size, bandwidth, found.multi_processor_count
    )


def layer_type(asked: torch.dtype | str, gpu: GpuFacts | None) -> torch.dtype | str:
    """Returns the type of the layer's products; "auto" is TF32 on the GPUs that have it, otherwise float32."""
    if asked != "auto":
        return asked
    return "tf32" if gpu is not None and gpu.capability >= (8, 0) else "float32"


def suitable_tile_classes(device: torch.device, batch: int, embedding_size: int) -> int:
    """Returns the number of classes T of a tile that suits a device, a multiple of 64."""
    if device.type == "cpu":
        return tile_classes(batch, embedding_size, "cpu")
    return gpu_tile_classes(batch, embedding_size, gpu_facts(device))


def gpu_tile_classes(batch: int, embedding_size: int, gpu: GpuFacts | None) -> int:
    """Returns the number of classes T of a tile that suits a GPU, a multiple of 64.

    A tile that lies in the L2 cache is read and written faster than one in memory. That pays off on cards with a large
    cache beside a slow memory; elsewhere the host would take longer to launch the kernels of a small tile.

    Args:
        batch, embedding_size: G and E.
        gpu: None is one of which nothing is known.
    """
    large, of_class = tile_classes(batch, embedding_size, "gpu"), bytes_of_class(batch, embedding_size)
    if gpu is None or not gpu.bandwidth:
        return large
    # Two blocks of 128 x 128 results of a product for each multiprocessor.
    smallest = 2 * gpu.processors * 128 * 128 // max(batch, 128)
    size = -(-max(smallest, gpu.cache * 3 // 4 // of_class) // 64) * 64
    # Twice as long, as a host has other work, and what the cache saves has to exceed what small kernels lose.
    launched = 2 * LAUNCHES * LAUNCH_SECONDS < PASSES * size * of_class / gpu.bandwidth
    return size if size * of_class <= gpu.cache and launched else large


def gpu_of_rank(local_rank: int, visible: int) -> int:
    """Returns the number of the GPU of a rank among those that it sees.

    Launchers such as srun with --gpus-per-task show each rank one GPU of its own, which then has the number 0 on all of
    them; see require_different_gpus.
    """
    return 0 if visible == 1 else local_rank


def require_enough_gpus(local_size: int, visible: int) -> None:
    """Raises ValueError if the GPUs that a rank sees are neither one nor enough for the ranks of its host."""
    if 1 < visible < local_size:
        raise ValueError(
            f"{local_size} ranks on this host, but it has {visible} GPUs: start one rank per GPU, or train on the CPU "
            "with backend=gloo"
        )


def require_different_gpus(gpus: Sequence[tuple[str, str]]) -> None:
    """Raises ValueError if two ranks have the same GPU, by (name of the host, UUID of the GPU) of each."""
    ranks: dict[tuple[str, str], list[str]] = {}
    for rank, gpu in enumerate(gpus):
        ranks.setdefault(gpu, []).append(str(rank))
    shared = [(*gpu, numbers) for gpu, numbers in ranks.items() if len(numbers) > 1]
    if shared:
        host, uuid, numbers = shared[0]
        raise ValueError(
            f"ranks {', '.join(numbers)} on {host} have the same GPU {uuid} ({plural(len(ranks), 'GPU')} for "
            f"{len(gpus)} ranks): start one rank per GPU, and show each rank all GPUs of its host, or one of its own "
            "(CUDA_VISIBLE_DEVICES); or train on the CPU with backend=gloo"
        )


class LogitsCache:
    """How many bytes of logits a step may keep between its passes.

    Args:
        nbytes: as asked for; None is LOGITS_CACHE_MB, and on a GPU also what the first step leaves free.

    Attributes:
        stepped: whether a backward pass has been done.
    """

    def __init__(self, nbytes: int | None):
        self._automatic = nbytes is None
        self._limit = LOGITS_CACHE_MB << 20 if nbytes is None else nbytes
        self.stepped = False

    def limit(self, device: torch.device) -> int:
        """Returns the limit of the next step on this device."""
        gpu = gpu_facts(device) if self._automatic and self.stepped else None
        if gpu is not None:
            # By now a whole step, also of the backbone, has taken its memory, which PyTorch's allocator keeps.
            free, _ = torch.cuda.mem_get_info(device)
            self._automatic, self._limit = False, logits_cache_bytes(free, gpu.memory)
            logging.info("the layer caches up to %s of logits, as %s are free", amount(self._limit), amount(free))
        return self._limit


def logits_cache_bytes(free: int, memory: int) -> int:
    """Returns the bytes of logits to cache on a GPU of which a step, with LOGITS_CACHE_MB, leaves ``free`` at its peak.

    A tenth of its memory stays free, for blocks of other sizes, verification and libraries.
    """
    return (LOGITS_CACHE_MB << 20) + max(0, free - memory // 10)
