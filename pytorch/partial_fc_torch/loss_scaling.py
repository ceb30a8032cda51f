"""Updates of a backbone in float16 that skip overflowed gradients."""

import logging

import torch

from partial_fc.distributed.collectives import Collectives
from partial_fc.layer.loss_scale import LossScale

from .layer.rows import HostCopy
from .optimizers import BackboneOptimizer


class LossScaling:
    """Skips updates whose gradients overflow, and adapts the loss scale.

    The gradient norm is computed after the all-reduce, so all ranks skip the same updates. PyTorch's fused optimizers
    check for an overflow on the device, so the host need not wait for the result here. It reads the result when it
    next waits anyway, before it uses the scale again.

    Attributes:
        scale: the scale of the next step, once `settle` has been called.
    """

    def __init__(self, collectives: Collectives):
        self.scale = LossScale(batch_size=1)
        self._collectives = collectives
        self._last: tuple[int, HostCopy] | None = None  # number of the last update, and whether it overflowed

    def update(self, optimizer: BackboneOptimizer, learning_rate: float, norm: torch.Tensor, num_update: int) -> None:
        """Updates the parameters if the norm of their gradients is finite.

        Raises:
            FloatingPointError: After too many overflows; with a fused optimizer, the next call of `settle` raises it.
        """
        overflow = (~torch.isfinite(norm)).float()
        self._last = num_update, HostCopy(overflow)
        if optimizer.skips_overflows:
            optimizer.update(learning_rate, overflow)
        elif not self.settle():
            optimizer.update(learning_rate)

    def settle(self) -> bool:
        """Waits for the result of the last update and adapts the scale; returns whether the update was skipped.

        Raises:
            FloatingPointError: Too many updates in a row were skipped.
        """
        if self._last is None:
            return False
        (num_update, copy), self._last = self._last, None
        with self._collectives.waiting("gradients"):
            overflowed = bool(copy.wait())
        if overflowed:
            self.scale.overflowed(num_update, logging.info if self._collectives.rank == 0 else None)
        else:
            self.scale.passed()
        return overflowed
