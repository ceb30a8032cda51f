"""The check that class centers and momentum fit in memory, before any rank of a host allocates them."""

from __future__ import annotations

from partial_fc.layer.sharding import shard_of
from partial_fc.utils import memory
from partial_fc.utils.text import plural

from .engine import Framework


def require_bank_memory(settings, framework: Framework) -> None:
    """Checks that the bank of this rank, in float32, fits on its GPU or with those of the other ranks on the host.

    Args:
        settings: of default.py.
        framework: see Framework.

    Raises:
        ValueError: It does not fit.
    """
    if settings.bank_folder:
        return  # the bank checks the space on the disk
    collectives = framework.collectives
    shard = shard_of(settings.num_classes, collectives.rank, collectives.size)
    needed = 8 * shard.size * settings.embedding_size
    free = framework.free_gpu_bytes() if settings.bank_on_gpu else None
    if free is not None:
        hint = "start more ranks, or set bank_on_gpu=False"
        memory.require_memory(needed, free, f"on GPU {collectives.local_rank}", hint)
        return
    local_size = collectives.local_size
    place = f"for the {plural(local_size, 'rank')} of this host"
    hint = "train on more hosts, or store them in files: bank_folder=<folder on a fast disk>"
    memory.require_memory(local_size * needed, memory.free_memory(), place, hint)
