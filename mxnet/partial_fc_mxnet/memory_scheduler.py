"""Learning rate schedulers of the backbone and the memory bank."""

import logging
from collections.abc import Callable, Sequence

from mxnet.lr_scheduler import LRScheduler

from partial_fc.training.schedule import step_factor

DROP = 0.5  # a fall below this ratio in one update is a step, such as a division by 10; curves fall by less


class RateScheduler(LRScheduler):
    """Multiplies an initial learning rate by the factor of the update, see RateFactor, and logs steps of the rate.

    A polynomial or cosine schedule changes the rate in every update; such small changes are not logged.
    """

    def __init__(self, base_lr: float, factor: Callable[[int], float]):
        super().__init__(base_lr)
        self.factor = factor
        self._last = 0  # update of the previous call: an optimizer calls once per parameter, but one line is enough

    def __call__(self, num_update: int) -> float:
        """Returns the learning rate of an update."""
        rate = self.base_lr * self.factor(num_update)
        if num_update != self._last and self.factor(num_update) < DROP * self.factor(num_update - 1):
            logging.info("Update[%d]: Change learning rate to %0.5e", num_update, rate)
        self._last = num_update
        return rate


def get_scheduler(
    lr_steps: Sequence[int], backbone_lr: float, memory_bank_lr: float, warmup_steps: int = 0
) -> tuple[LRScheduler, LRScheduler]:
    """Returns the schedulers of the backbone and the memory bank.

    Each scheduler multiplies its rate by 0.1 after every update in ``lr_steps``. Both take the number of the current
    update, starting at 1, so they change at the same update.

    Args:
        lr_steps: increasing numbers of updates; may be empty.
        backbone_lr: initial learning rate of the backbone.
        memory_bank_lr: initial learning rate of the class centers.
        warmup_steps: number of updates over which the rates grow linearly from 0.

    Returns:
        (backbone scheduler, memory bank scheduler).
    """
    factor = step_factor(lr_steps, warmup_steps)
    return RateScheduler(backbone_lr, factor), RateScheduler(memory_bank_lr, factor)
