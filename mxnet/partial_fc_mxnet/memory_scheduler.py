"""Learning rates of the backbone and of the memory bank."""

from __future__ import annotations

from collections.abc import Sequence

from mxnet.lr_scheduler import LRScheduler, MultiFactorScheduler


def get_scheduler(
    lr_steps: Sequence[int], backbone_lr: float, memory_bank_lr: float, warmup_steps: int = 0
) -> tuple[LRScheduler, LRScheduler]:
    """The schedulers of the backbone and of the memory bank.

    Each rate is multiplied by 0.1 after every update in ``lr_steps``. Both are asked with the number
    of the update they are about to scale, the first being 1, so they step together.

    Args:
        lr_steps: increasing numbers of updates; may be empty.
        backbone_lr: initial rate of the backbone.
        memory_bank_lr: initial rate of the class centers.
        warmup_steps: the rates grow linearly from 0 over so many updates.

    Returns:
        (backbone scheduler, memory bank scheduler).
    """
    return tuple(
        MultiFactorScheduler(step=_steps(lr_steps), factor=0.1, base_lr=lr, warmup_steps=warmup_steps)
        for lr in (backbone_lr, memory_bank_lr)
    )


def _steps(lr_steps: Sequence[int]) -> list:
    # MultiFactorScheduler refuses an empty list; a step that no training reaches is the same as none.
    return list(lr_steps) or [2**62]
