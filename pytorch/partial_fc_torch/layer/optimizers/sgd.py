"""SGD with momentum and weight decay.

Shapes: T rows of a tile, E embedding.
"""

from torch.autograd.graph import increment_version

from partial_fc.layer.center_states import CENTER_STATES
from partial_fc.layer.sgd import SGDParams, sgd_momentum

from ..rows import Centers, TileGradient, gather_rows, is_narrow, remove_component
from .optimizer import RowOptimizer


class SGD(RowOptimizer):
    """SGD with momentum and weight decay, equal to torch.optim.SGD or to MXNet's, see SGDParams.

    Args:
        momentum, weight_decay: as in torch.optim.SGD.
        momentum_convention: whether the momentum sums "gradients", as in PyTorch, or "steps", as in MXNet.
    """

    states = CENTER_STATES["sgd"]

    def __init__(
        self, momentum: float = 0.9, weight_decay: float = 5e-4, momentum_convention: str = "gradients"
    ) -> None:
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.momentum_convention = momentum_convention

    def update(self, centers: Centers, gradient: TileGradient, learning_rate: float) -> None:
        """See RowOptimizer.update; its two implementations save one pass over the rows."""
        rates = learning_rate, self.momentum, self.weight_decay
        params = SGDParams(*rates, gradient.scale, self.momentum_convention)
        if not gradient.weight.is_cpu:
            _update_by_operators(centers, gradient, params)
        elif is_narrow(centers.weight):
            for block in self._blocks(gradient):
                _update_narrow_on_cpu(centers, block, params)
        else:
            _update_on_cpu(centers, gradient, params)


def _update_on_cpu(centers: Centers, gradient: TileGradient, params: SGDParams) -> None:
    """Updates with the function that MXNet's trainer calls, too."""
    rows, momentum, weight = gradient.rows, centers.states["weight_mom"], gradient.weight
    arrays = gradient.raw.numpy(), momentum[rows].numpy() if isinstance(rows, slice) else momentum.numpy()
    index = None if isinstance(rows, slice) else rows.numpy()
    sgd_momentum(weight.numpy(), *arrays, params, gradient.inverse_norm.numpy(), index)
    if index is not None:
        centers.weight.numpy()[index] = weight.numpy()  # three times as fast as index_copy_
    # PyTorch does not see NumPy's writes. A backward pass that needs the previous centers must raise an error.
    increment_version(centers.weight)


def _update_narrow_on_cpu(centers: Centers, gradient: TileGradient, params: SGDParams) -> None:
    weight, momentum = gradient.weight, gather_rows(centers.states["weight_mom"], gradient.rows)
    arrays = gradient.raw.numpy(), momentum.numpy()
    sgd_momentum(weight.numpy(), *arrays, params, gradient.inverse_norm.numpy())
    centers.write(gradient.rows, weight, {"weight_mom": momentum})


def _update_by_operators(centers: Centers, gradient: TileGradient, params: SGDParams) -> None:
    rows, weight, values = gradient.rows, gradient.weight, gradient.raw
    remove_component(values, weight, gradient.inverse_norm)
    momentum = gather_rows(centers.states["weight_mom"], rows)
    momentum.mul_(params.momentum).add_(values, alpha=params.gain * params.rescale_grad)
    momentum.add_(weight, alpha=params.gain * params.wd)
    weight.add_(momentum, alpha=-params.learning_rate if params.momentum_convention == "gradients" else 1.0)
    if not isinstance(rows, slice):
        centers.write(gradient.rows, weight, {"weight_mom": momentum})
