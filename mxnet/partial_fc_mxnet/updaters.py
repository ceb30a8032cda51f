"""The update of a backbone whose gradients are clipped by their global norm or computed in float16."""

import logging
import math

import horovod.mxnet as hvd
import mxnet as mx

from partial_fc.layer.loss_scale import LossScale

from .collectives import default_collectives
from .ops import module_arrays
from .optimizer import DistributedOptimizer


class ClippedUpdater(mx.optimizer.Updater):
    """Sums the gradients over the ranks and scales them down to a norm of at most ``max_norm`` before the update.

    With g the gradient of the mean loss over the global batch with respect to all parameters, the update uses
    g * min(1, max_norm / |g|) (Pascanu et al. 2013, arXiv 1211.5063, algorithm 1), so it does not depend on the number
    of ranks. Norm and factor stay on the device, so Python does not wait for them. A non-finite gradient remains
    non-finite, and CallBackFinite reports it.

    Collectives: the all-reduces of DistributedOptimizer, all of them before any parameter changes.

    Args:
        optimizer: sums the gradients; its wrapped optimizer does the update. rescale_grad turns the sum into the mean.
        max_norm: maximum norm, above 0.
    """

    def __init__(self, optimizer: DistributedOptimizer, max_norm: float):
        super().__init__(optimizer._optimizer)
        self._sum_gradients = optimizer.sum_gradients
        self._max_norm = max_norm

    def __call__(self, index, grad, weight) -> None:
        """Updates ``weight``; arguments are lists, ``grad`` is overwritten with the summed and clipped gradients."""
        self._sum_gradients(index, grad)
        norm = module_arrays.global_norm(grad) * self.optimizer.rescale_grad
        factor = mx.nd.minimum(self._max_norm / norm, 1.0)  # 1 if the norm is 0
        for array in grad:
            mx.nd.broadcast_mul(array, factor.reshape((1,) * array.ndim), out=array)
        super().__call__(index, grad, weight)


class ScaledUpdater(mx.optimizer.Updater):
    """The updater of a Module whose gradients are multiplied by the factor of a LossScale.

    It skips an update, on all ranks, if a summed gradient is not finite: parameters and momentum stay as they are. A
    skipped update still counts, so that the learning rates of backbone and centers change at the same update. Unlike
    training in float32, the check makes Python wait for the backward pass. Gradients are clipped as in ClippedUpdater,
    but in the float32 arithmetic of the update, because a clipped gradient could underflow in float16.

    Collectives, in the order they run: the all-reduces of DistributedOptimizer, all of them before any parameter
    changes; all-reduce ``gradient_norm``, because the bits of the sums may differ between ranks.

    Args:
        optimizer: sums the gradients; its wrapped optimizer does the update, with a float32 copy of every float16
            parameter if it is ``multi_precision``.
        loss_scale: scale of the gradients; it is notified of the outcome of every update.
        max_norm: maximum norm of the gradient of the mean loss over the global batch; 0 disables clipping.
        logger: receives rank 0's messages about skipped updates.
    """

    def __init__(self, optimizer: DistributedOptimizer, loss_scale: LossScale, max_norm: float = 0.0, logger=logging):
        super().__init__(optimizer._optimizer)
        self._sum_gradients = optimizer.sum_gradients
        self._loss_scale = loss_scale
        self._max_norm = max_norm
        self._logger = logger

    def __call__(self, index, grad, weight) -> None:
        """Updates ``weight``, or skips the update; arguments as for ClippedUpdater, float16 or float32.

        Raises:
            FloatingPointError: on every rank, see LossScale.overflowed.
        """
        self._sum_gradients(index, grad)
        if self._max_norm:
            norm = float(module_arrays.global_norm(grad).asscalar())
            norm = norm if math.isfinite(norm) else math.inf
        else:
            norm = 0.0 if module_arrays.all_finite(grad) else math.inf
        norm, optimizer = default_collectives.max("gradient_norm", norm), self.optimizer
        if math.isinf(norm):
            optimizer._update_count(index)
            self._loss_scale.overflowed(optimizer.num_update, self._logger.info if hvd.rank() == 0 else None)
            return
        rescale_grad = optimizer.rescale_grad
        optimizer.rescale_grad = rescale_grad / self._loss_scale.factor
        if norm * optimizer.rescale_grad > self._max_norm > 0:
            optimizer.rescale_grad = self._max_norm / norm
        super().__call__(index, grad, weight)
        optimizer.rescale_grad = rescale_grad
        self._loss_scale.passed()
