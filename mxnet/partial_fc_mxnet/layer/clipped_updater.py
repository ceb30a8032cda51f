"""The update of a backbone with gradients clipped by their global norm."""

from __future__ import annotations

import mxnet as mx

from partial_fc_mxnet.ops import module_arrays
from partial_fc_mxnet.optimizer import DistributedOptimizer


class ClippedUpdater(mx.optimizer.Updater):
    """Sums the gradients over the ranks and scales them down to a norm of at most ``max_norm`` before the update.

    With g the gradient of the mean loss over the global batch with respect to all parameters, the update uses
    g * min(1, max_norm / |g|) (Pascanu et al. 2013, arXiv 1211.5063, algorithm 1), so it does not depend on the number
    of ranks. Norm and factor stay on the device; Python does not wait for them. A gradient that is not finite
    stays so, and CallBackFinite reports it.

    Collectives: those of DistributedOptimizer, all of them before any parameter changes.

    Args:
        optimizer: sums the gradients; the optimizer it wraps updates. Its rescale_grad turns the sum into the mean.
        max_norm: above 0.
    """

    def __init__(self, optimizer: DistributedOptimizer, max_norm: float):
        super().__init__(optimizer._optimizer)
        self._sum_gradients = optimizer.sum_gradients
        self._max_norm = max_norm

    def __call__(self, index, grad, weight) -> None:
        """Updates ``weight``.

        Args:
            index: list of the indices of the parameters.
            grad, weight: lists of float32 arrays; ``grad`` is overwritten with the summed and clipped gradients.
        """
        self._sum_gradients(index, grad)
        norm = module_arrays.global_norm(grad) * self.optimizer.rescale_grad
        factor = mx.nd.minimum(self._max_norm / norm, 1.0)  # 1 if the norm is 0
        for array in grad:
            mx.nd.broadcast_mul(array, factor.reshape((1,) * array.ndim), out=array)
        super().__call__(index, grad, weight)
