"""The device that a rank computes on."""

from __future__ import annotations

import mxnet as mx


def sees_gpus() -> bool:
    """Returns whether the ranks of this host compute on GPUs."""
    return mx.context.num_gpus() > 0


def rank_context(local_rank: int) -> mx.Context:
    """Returns GPU ``local_rank`` if MXNet finds GPUs, otherwise the CPU.

    Raises:
        ValueError: this host has more ranks than GPUs.
    """
    gpus = mx.context.num_gpus()
    if gpus == 0:
        return mx.cpu()
    if local_rank >= gpus:
        raise ValueError(
            f"local rank {local_rank} has no GPU, MXNet finds {gpus} on this host: start at most {gpus} ranks here"
        )
    return mx.gpu(local_rank)
