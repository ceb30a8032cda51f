"""The optimizers: SGD for the memory bank's rows, and a wrapper that sums gradients over the ranks.

Shapes: S sampled classes of this rank, L classes of this rank, E embedding.
"""

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np

from partial_fc.layer.sgd import SGDParams, sgd_momentum

from .ops.memory import memory_of


class MemoryBankSGDOptimizer:
    """SGD with momentum and weight decay on the memory bank's rows of a step.

    As MXNet's ``sgd_mom_update``: mom = momentum * mom - lr * (rescale_grad * grad + wd * weight); weight += mom.

    Args:
        lr_scheduler: callable, number of the update -> learning rate.
        rescale_grad: 1 / (B * R), which turns the gradient of the summed loss into the gradient of the mean loss.
        momentum: factor of the momentum.
        wd: weight decay.
        momentum_convention: whether the momentum sums steps or gradients, see SGDParams.
    """

    def __init__(
        self,
        lr_scheduler,
        rescale_grad: float,
        momentum: float = 0.9,
        wd: float = 5e-4,
        momentum_convention: str = "steps",
    ):
        self.lr_scheduler = lr_scheduler
        self.rescale_grad = rescale_grad
        self.momentum = momentum
        self.wd = wd
        self.momentum_convention = momentum_convention

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
            weight: (S, E) float32.
            grad: (S, E) float32, may be overwritten.
            state: (S, E) float32; (L, E) with ``state_rows``.
            learning_rate: rate of this update.
            inverse_norm: (S,), on the CPU only, see ``sgd_momentum``.
            state_rows: (S,), on the CPU only, see ``mom_rows`` in ``sgd_momentum``.
        """
        if weight.context.device_type == "cpu":
            params = SGDParams(learning_rate, self.momentum, self.wd, self.rescale_grad, self.momentum_convention)
            sgd_momentum(memory_of(weight), memory_of(grad), memory_of(state), params, inverse_norm, state_rows)
            return
        update = sum_gradients_update if self.momentum_convention == "gradients" else mx.nd.sgd_mom_update
        factors = {"momentum": self.momentum, "wd": self.wd, "rescale_grad": self.rescale_grad}
        update(weight, grad, state, out=weight, lr=learning_rate, **factors)


def sum_gradients_update(weight, grad, mom, out, lr: float, **factors) -> None:
    """mom = momentum * mom + rescale_grad * grad + wd * weight; out = weight - lr * mom, on any device.

    Takes the factors of ``sgd_mom_update``; ``out`` may be ``weight``. See SGDParams.
    """
    # With the learning rate -1 the operator's momentum sums gradients; its weights are discarded.
    mx.nd.sgd_mom_update(weight, grad, mom, out=mx.nd.empty(weight.shape, weight.context), lr=-1.0, **factors)
    mx.nd.sgd_update(weight, mom, out=out, lr=lr, wd=0.0)


@mx.optimizer.register
class GradientSumSGD(mx.optimizer.SGD):
    """MXNet's SGD with a momentum that sums gradients, as in torch.optim.SGD."""

    def _update_impl(self, indices, weights, grads, states, multi_precision=False):
        if not isinstance(indices, (tuple, list)):
            indices, weights, grads, states = [indices], [weights], [grads], [states]
        self._update_count(indices)
        factors = {"rescale_grad": self.rescale_grad}
        if self.clip_gradient:
            factors["clip_gradient"] = self.clip_gradient
        for weight, grad, state, lr, wd in zip(weights, grads, states, self._get_lrs(indices), self._get_wds(indices)):
            if lr == 0 and self.learning_rate != 0:  # lr_mult is 0: a parameter that is not trained keeps no momentum
                continue
            mom, master = state if multi_precision else (state, weight)
            gradient = grad.astype(master.dtype, copy=False)
            if mom is None:
                mx.nd.sgd_update(master, gradient, out=master, lr=lr, wd=wd, **factors)
            else:
                sum_gradients_update(master, gradient, mom, out=master, lr=lr, wd=wd, momentum=self.momentum, **factors)
            if master is not weight:
                mx.nd.cast(master, dtype=weight.dtype, out=weight)


class DistributedOptimizer(mx.optimizer.Optimizer):
    """Sums every gradient over the ranks, then calls the wrapped optimizer.

    Reads and writes of attributes go to the wrapped optimizer. The most important attribute is ``idx2name``: from the
    names MXNet derives which parameters have no weight decay (all but ``*_weight`` and ``*_gamma``) and which have an
    ``lr_mult`` or ``wd_mult`` in the symbol.

    Collectives of an update: all-reduce ``<prefix>grad.<parameter name>`` for each parameter, submitted in the order of
    the indices. Each starts as soon as the backward pass has written its gradient; Horovod fuses them.

    Args:
        optimizer: any MXNet optimizer; it applies its ``rescale_grad`` after the sum.
        prefix: prefix of the collectives' names; two optimizers in one program need different prefixes.
    """

    # No super().__init__(): it would overwrite the attributes of the wrapped optimizer with defaults.
    def __init__(self, optimizer: mx.optimizer.Optimizer, prefix: str = ""):
        self._optimizer = optimizer
        self._prefix = prefix

    def __getattr__(self, name):
        if name == "_optimizer":  # not set yet while copy or pickle creates an instance
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
            # Module assigns the names after construction, but the wrapped optimizer has already derived its multipliers
            # without names. Derive them again; the dicts keep the user's multipliers.
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
        """Starts to sum one gradient, or a list of gradients, over the ranks in place; does not wait."""
        if hvd.size() == 1:
            return
        if not isinstance(index, (tuple, list)):
            index, grad = [index], [grad]
        for i, g in zip(index, grad):
            name = self._optimizer.idx2name.get(i, i)
            hvd.allreduce_(g, op=hvd.Sum, name=f"{self._prefix}grad.{name}", priority=-i)
