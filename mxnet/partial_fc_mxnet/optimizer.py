"""The optimizers: SGD of the memory bank's rows, and an MXNet optimizer that sums gradients over the ranks.

Shapes: S sampled classes of this rank, E embedding.
"""

from __future__ import annotations

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np

from partial_fc.layer.sgd import sgd_momentum

from .ops.host_memory import memory_of


class MemoryBankSGDOptimizer:
    """SGD with momentum and weight decay on the rows of the memory bank that took part in a step.

    Args:
        lr_scheduler: number of the update -> learning rate.
        rescale_grad: 1 / (B * R) turns the summed gradient into that of the mean loss.
        momentum, wd: of MXNet's ``sgd_mom_update``:
            mom = momentum * mom - lr * (rescale_grad * grad + wd * weight); weight += mom.
    """

    def __init__(self, lr_scheduler, rescale_grad: float, momentum: float = 0.9, wd: float = 5e-4):
        self.lr_scheduler = lr_scheduler
        self.rescale_grad = rescale_grad
        self.momentum = momentum
        self.wd = wd

    def update(
        self,
        weight: mx.nd.NDArray,
        grad: mx.nd.NDArray,
        state: mx.nd.NDArray,
        learning_rate: float,
        inverse_norm: np.ndarray | None = None,
        state_rows: np.ndarray | None = None,
    ) -> None:
        """Updates ``weight`` and its momentum ``state`` in place.

        Args:
            weight, grad, state: (S, E) float32; ``grad`` may be overwritten.
            learning_rate: of this update.
            inverse_norm, state_rows: on the CPU alone, see partial_fc/layer/sgd.py (there ``mom_rows``).
        """
        numbers = dict(momentum=self.momentum, wd=self.wd, rescale_grad=self.rescale_grad)
        if weight.context.device_type == "cpu":
            arrays = map(memory_of, (weight, grad, state))
            sgd_momentum(*arrays, learning_rate, **numbers, inverse_norm=inverse_norm, mom_rows=state_rows)
        else:
            mx.nd.sgd_mom_update(weight, grad, state, out=weight, lr=learning_rate, **numbers)


class DistributedOptimizer(mx.optimizer.Optimizer):
    """Sums every gradient over the ranks, then lets the wrapped optimizer update.

    Everything but the update belongs to the wrapped optimizer, its ``idx2name`` above all: MXNet tells
    by the names which parameters see no weight decay (all but ``*_weight`` and ``*_gamma``) and which
    have an ``lr_mult`` or ``wd_mult`` of their own in the symbol.

    Collectives of an update: all-reduce ``<prefix>grad.<parameter name>`` for each parameter, sent in the
    order of the indices, each as soon as backward has written its gradient; Horovod fuses them.

    Args:
        optimizer: any MXNet optimizer; its ``rescale_grad`` is applied after the sum.
        prefix: put before the names of the collectives; two optimizers in one program need two.
    """

    # No super().__init__(): it would write its defaults over what the wrapped optimizer was given.
    def __init__(self, optimizer: mx.optimizer.Optimizer, prefix: str = ""):
        self._optimizer = optimizer
        self._prefix = prefix

    def __getattr__(self, name):
        if name == "_optimizer":  # not there yet, while a copy or an unpickled one is being made
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def __getstate__(self):
        return dict(self.__dict__)

    def __setstate__(self, state):
        self.__dict__.update(state)

    def __setattr__(self, name, value):
        if name in ("_optimizer", "_prefix"):
            object.__setattr__(self, name, value)
            return
        inner = self._optimizer
        setattr(inner, name, value)
        if name == "idx2name":
            # Module assigns the names after construction, when the wrapped optimizer has already worked out
            # from none which parameters decay; it has to do so again, without losing what the user set.
            inner.set_lr_mult(dict(inner.lr_mult))
            inner.set_wd_mult(dict(inner.wd_mult))

    def create_state(self, index, weight):
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index, weight):
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index, weight, grad, state):
        self.sum_gradients(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index, weight, grad, state):
        self.sum_gradients(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr):
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult):
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult):
        self._optimizer.set_wd_mult(args_wd_mult)

    def sum_gradients(self, index, grad) -> None:
        """Sends one gradient, or a list of them with their indices, to be summed in place; returns at once."""
        if hvd.size() == 1:
            return
        many = isinstance(index, (tuple, list))
        for i, g in zip(index, grad) if many else ((index, grad),):
            name = self._optimizer.idx2name.get(i, i)
            hvd.allreduce_(g, op=hvd.Sum, name=f"{self._prefix}grad.{name}", priority=-i)
