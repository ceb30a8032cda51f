"""Where a rank computes."""

from __future__ import annotations

import mxnet as mx


def sees_gpus() -> bool:
    """Whether ranks of this host compute on GPUs."""
    return mx.context.num_gpus() > 0


def rank_context(local_rank: int) -> mx.Context:
    """GPU ``local_rank`` where MXNet sees GPUs, the CPU otherwise.

    Raises:
        ValueError: more ranks on this host than GPUs.
    """
    return choose_context(local_rank, mx.context.num_gpus())


def choose_context(local_rank: int, gpus: int) -> mx.Context:
    """As :func:`rank_context`, on a host with so many GPUs."""
    if gpus == 0:
        return mx.cpu()
    if local_rank >= gpus:
        raise ValueError(
            f"local rank {local_rank} has no GPU, MXNet sees {gpus} on this host: start at most {gpus} ranks here"
        )
    return mx.gpu(local_rank)
