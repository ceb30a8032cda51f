"""The check that class centers and momentum fit in memory, before any rank of a host allocates them."""

from __future__ import annotations

from collections.abc import Callable

from partial_fc.distributed.collectives import Collectives
from partial_fc.layer.sharding import shard_of
from partial_fc.utils import memory
from partial_fc.utils.text import plural


def require_bank_memory(settings, collectives: Collectives, free_gpu_bytes: Callable[[], int] | None) -> None:
    """Checks that the bank of this rank, in float32, fits on its GPU or with those of the other ranks on the host.

    Args:
        settings: of default.py.
        collectives: of this process.
        free_gpu_bytes: returns the free memory of this rank's GPU; None keeps the bank on the host.

    Raises:
        ValueError: It does not fit.
    """
    shard = shard_of(settings.num_classes, collectives.rank, collectives.size)
    needed = 8 * shard.size * settings.embedding_size
    if free_gpu_bytes is not None:
        hint = "start more ranks, or set bank_on_gpu=False"
        memory.require_memory(needed, free_gpu_bytes(), f"on GPU {collectives.local_rank}", hint)
        return
    local_size = collectives.local_size
    place = f"for the {plural(local_size, 'rank')} of this host"
    hint = "train on more hosts, or store them in files: bank_folder=<folder on a fast disk>"
    memory.require_memory(local_size * needed, memory.free_memory(), place, hint)
