"""Scaling of learning rates with the global batch size."""

from __future__ import annotations

REFERENCE_BATCH = 512  # global batch size for which learning rates are given: 8 ranks of 64 images


def scaled_rate(lr: float, global_batch: int) -> float:
    """Scales a learning rate for 512 images to a global batch of ``global_batch`` images.

    Linear scaling changes the weights by about the same amount per epoch at any batch size (Goyal et al. 2017,
    arXiv 1706.02677, section 2.1).
    """
    return lr / REFERENCE_BATCH * global_batch
