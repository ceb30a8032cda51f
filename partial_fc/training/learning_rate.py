"""Scaling of learning rates with the global batch size."""

from __future__ import annotations

REFERENCE_BATCH = 512  # global batch size for which learning rates are given: 8 ranks of 64 images


def scaled_rate(lr: float, global_batch: int) -> float:
    """Scales a learning rate for 512 images to a global batch of ``global_batch`` images.

    Linear scaling changes the weights by about the same amount per epoch at any batch size (Goyal et al. 2017,
    arXiv 1706.02677, section 2.1).
    """
    return lr / REFERENCE_BATCH * global_batch


def learning_rates(settings, ranks: int) -> tuple[float, float]:
    """Returns the initial learning rates of backbone and class centers; both scale with the global batch unless set."""
    scaled = scaled_rate(settings.lr, settings.batch_size * ranks)
    return settings.backbone_lr or scaled, settings.memory_bank_lr or scaled
