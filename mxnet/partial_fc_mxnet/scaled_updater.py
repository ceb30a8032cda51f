"""The update of a backbone in float16: all ranks make it, or none."""

from __future__ import annotations

import logging

import horovod.mxnet as hvd
import mxnet as mx

from partial_fc.loss_scale import LossScale

from . import job, module_arrays
from .optimizer import DistributedOptimizer


class ScaledUpdater(mx.optimizer.Updater):
    """What a Module calls with its gradients, for those that a LossScale's factor has multiplied.

    An update is skipped where a summed gradient is not finite. No parameter, no momentum changes then, but the update
    counts: the learning rates of backbone and centers stay in step, and the number of updates is what was asked for.
    To know, Python waits for the backward pass, which in float32 it does not.

    Collectives, in the order they run: those of DistributedOptimizer, all of them before any parameter changes;
    all-reduce ``gradients_overflow``, because the bits of a sum need not be the same on every rank.

    Args:
        optimizer: sums the gradients; the optimizer it wraps updates, with a float32 copy of every float16 parameter
            if that is ``multi_precision``.
        loss_scale: of the gradients, told how each update went.
        logger: where rank 0 reports a skipped update.
    """

    def __init__(self, optimizer: DistributedOptimizer, loss_scale: LossScale, logger=logging):
        super().__init__(optimizer._optimizer)
        self._sum_gradients = optimizer.sum_gradients
        self._loss_scale = loss_scale
        self._logger = logger

    def __call__(self, index, grad, weight) -> None:
        """Updates ``weight``, or skips that.

        Args:
            index: of the parameters.
            grad, weight: lists of arrays.

        Raises:
            FloatingPointError: on every rank, see LossScale.
        """
        self._sum_gradients(index, grad)
        if job.largest("gradients_overflow", 0.0 if module_arrays.all_finite(grad) else 1.0):
            self._skip(index)
        else:
            self._update(index, grad, weight)
            self._loss_scale.passed()

    def _update(self, index, grad, weight) -> None:
        optimizer = self.optimizer
        rescale_grad = optimizer.rescale_grad
        optimizer.rescale_grad = rescale_grad / self._loss_scale.factor
        super().__call__(index, grad, weight)
        optimizer.rescale_grad = rescale_grad

    def _skip(self, index) -> None:
        self.optimizer._update_count(index)
        num_update, before = self.optimizer.num_update, self._loss_scale.scale
        self._loss_scale.overflowed(num_update)
        if hvd.rank() == 0:
            self._logger.info(
                "float16 overflow at update %d: step skipped, loss scale %.0f -> %.0f",
                num_update,
                before,
                self._loss_scale.scale,
            )
