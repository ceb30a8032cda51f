"""Learning rate schedulers of the backbone and the memory bank."""

from __future__ import annotations

from collections.abc import Sequence

from mxnet.lr_scheduler import LRScheduler, MultiFactorScheduler


def get_scheduler(
    lr_steps: Sequence[int], backbone_lr: float, memory_bank_lr: float, warmup_steps: int = 0
) -> tuple[LRScheduler, LRScheduler]:
    """Returns the schedulers of the backbone and the memory bank.

    Each scheduler multiplies its rate by 0.1 after every update in ``lr_steps``. Both are called with the number of the
    current update, starting at 1, so they change at the same update.

    Args:
        lr_steps: increasing numbers of updates; may be empty.
        backbone_lr: initial learning rate of the backbone.
        memory_bank_lr: initial learning rate of the class centers.
        warmup_steps: number of updates in which the rates grow linearly from 0.

    Returns:
        (backbone scheduler, memory bank scheduler).
    """
    return tuple(
        MultiFactorScheduler(step=_steps(lr_steps), factor=0.1, base_lr=lr, warmup_steps=warmup_steps)
        for lr in (backbone_lr, memory_bank_lr)
    )


def _steps(lr_steps: Sequence[int]) -> list:
    # MultiFactorScheduler rejects an empty list; no training reaches this step.
    return list(lr_steps) or [2**62]
