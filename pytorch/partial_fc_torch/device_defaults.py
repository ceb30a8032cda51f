"""What suits a GPU, as functions of facts about it. The trainer, and the layer, ask for them where they are built."""

from __future__ import annotations

from collections.abc import Sequence

from partial_fc.utils.text import plural


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
    """Raises ValueError if two ranks have the same GPU.

    Args:
        gpus: (name of the host, UUID of the GPU) by rank.
    """
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
