"""The learning rates of a training, which follow the size of its batches."""

from __future__ import annotations

REFERENCE_BATCH = 512  # images of a global batch, 8 ranks of 64: what rates of the field are given for


def scaled_rate(lr: float, global_batch: int) -> float:
    """The rate for a batch of ``global_batch`` images of all ranks, ``lr`` being that for 512.

    In proportion, so that an epoch changes the weights as much at any size (Goyal et al. 2017, arXiv 1706.02677,
    section 2.1).
    """
    return lr / REFERENCE_BATCH * global_batch
