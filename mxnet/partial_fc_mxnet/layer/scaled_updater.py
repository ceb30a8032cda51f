"""The update of a backbone in float16: all ranks make it, or none."""

from __future__ import annotations

import logging
import math

import horovod.mxnet as hvd
import mxnet as mx

from partial_fc.layer.loss_scale import LossScale
from partial_fc_mxnet import collectives
from partial_fc_mxnet.ops import module_arrays
from partial_fc_mxnet.optimizer import DistributedOptimizer


class ScaledUpdater(mx.optimizer.Updater):
    """What a Module calls with its gradients, for those that a LossScale's factor has multiplied.

    An update is skipped where a summed gradient is not finite. No parameter, no momentum changes then, but the update
    counts: the learning rates of backbone and centers stay in step, and the number of updates is what was asked for.
    To know, Python waits for the backward pass, which in float32 it does not. What is larger than ``max_norm`` is
    clipped as by ClippedUpdater, in the float32 of the update: in float16 a clipped gradient could vanish.

    Collectives, in the order they run: those of DistributedOptimizer, all of them before any parameter changes;
    all-reduce ``gradient_norm``, because the bits of a sum need not be the same on every rank.

    Args:
        optimizer: sums the gradients; the optimizer it wraps updates, with a float32 copy of every float16 parameter
            if that is ``multi_precision``.
        loss_scale: of the gradients, told how each update went.
        max_norm: of the gradient of the mean loss over the global batch; 0 clips nothing.
        logger: where rank 0 reports a skipped update.
    """

    def __init__(self, optimizer: DistributedOptimizer, loss_scale: LossScale, max_norm: float = 0.0, logger=logging):
        super().__init__(optimizer._optimizer)
        self._sum_gradients = optimizer.sum_gradients
        self._loss_scale = loss_scale
        self._max_norm = max_norm
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
        norm = collectives.largest("gradient_norm", self._norm_of(grad))
        if math.isinf(norm):
            self._skip(index)
        else:
            self._update(index, grad, weight, norm)
            self._loss_scale.passed()

    def _norm_of(self, grad) -> float:
        """The norm, of which 0 is enough where nothing is clipped; infinite where a gradient is not finite."""
        if not self._max_norm:
            return 0.0 if module_arrays.all_finite(grad) else math.inf
        norm = float(module_arrays.global_norm(grad).asscalar())
        return norm if math.isfinite(norm) else math.inf

    def _update(self, index, grad, weight, norm: float) -> None:
        optimizer = self.optimizer
        rescale_grad = optimizer.rescale_grad
        optimizer.rescale_grad = rescale_grad / self._loss_scale.factor
        if self._max_norm and norm * optimizer.rescale_grad > self._max_norm:
            optimizer.rescale_grad = self._max_norm / norm
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
