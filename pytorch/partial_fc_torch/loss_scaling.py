"""Updates of a backbone in float16, of which those with overflowed gradients are left out."""

import logging

import torch

from partial_fc.distributed.collectives import Collectives
from partial_fc.layer.loss_scale import LossScale

from .layer.device import HostCopy
from .optimizers import BackboneOptimizer


class LossScaling:
    """A loss scale, and what it needs to know of each update.

    The norm of the gradients is that after their all-reduce, so that all ranks leave out the same updates. Optimizers
    that PyTorch fuses into one kernel look themselves whether the gradients have overflowed: then the host goes on, and
    learns it when it waits for the next step anyway, before it needs the scale again.

    Attributes:
        scale: of the next step, once `settle` has been called.
    """

    def __init__(self, collectives: Collectives):
        self.scale = LossScale(batch_size=1)
        self._collectives = collectives
        self._last: tuple[int, HostCopy] | None = None  # number of an update, and whether its gradients overflowed

    def update(self, optimizer: BackboneOptimizer, learning_rate: float, norm: torch.Tensor, num_update: int) -> None:
        """Updates the parameters, unless the norm of their gradients is not finite.

        Raises:
            FloatingPointError: after too many overflows; on a GPU perhaps in the next call of `settle`.
        """
        overflow = (~torch.isfinite(norm)).float()
        self._last = num_update, HostCopy(overflow)
        if optimizer.skips_overflows:
            optimizer.update(learning_rate, overflow)
        elif not self.settle():
            optimizer.update(learning_rate)

    def settle(self) -> bool:
        """Waits until it is known whether the last update was left out, and changes the scale; returns whether it was.

        Raises:
            FloatingPointError: too many updates in a row were.
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
