"""What becomes of the gradient of the centers: an update of the centers of the step in place, or a dense array.

Shapes: L classes of this rank, T centers of a tile, E embedding.
"""

from __future__ import annotations

import torch
from torch.autograd.graph import increment_version

from partial_fc.layer.sgd import SGDParams, sgd_momentum

from .rows import remove_component


class SGDUpdate:
    """Updates the centers of the step in place by SGD; all other rows stay as they are.

    Args:
        weight: (L, E) centers.
        weight_mom: (L, E) their momentum.
        params: the hyperparameters.

    Attributes:
        grad: None; no dense gradient exists.
    """

    grad: torch.Tensor | None = None

    def __init__(self, weight: torch.Tensor, weight_mom: torch.Tensor, params: SGDParams):
        self.weight = weight
        self.weight_mom = weight_mom
        self.params = params

    def __call__(
        self, rows: slice | torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor, inverse_norm: torch.Tensor
    ) -> None:
        """Takes one tile.

        Args:
            rows: those of its centers, a slice or (T,) int64.
            weight: (T, E) its centers; a view of the layer's if ``rows`` is a slice, otherwise a copy.
            gradient: (T, E) of the summed loss, by the centers but for the component along each of them, which is
                removed here; overwritten.
            inverse_norm: (T,) 1 / |W|.
        """
        if weight.device.type == "cpu":
            self._update_on_host(rows, weight, gradient, inverse_norm)
        else:
            self._update_on_device(rows, weight, gradient, inverse_norm)

    def _update_on_host(self, rows, weight, gradient, inverse_norm) -> None:
        whole = isinstance(rows, slice)
        momentum = self.weight_mom[rows] if whole else self.weight_mom
        sgd_momentum(
            weight.numpy(),
            gradient.numpy(),
            momentum.numpy(),
            self.params,
            inverse_norm.numpy(),
            None if whole else rows.numpy(),
        )
        if not whole:
            self.weight.numpy()[rows.numpy()] = weight.numpy()  # three times as fast as index_copy_
        # PyTorch has not seen NumPy's writes; a backward pass that needs the earlier centers then raises an error.
        increment_version(self.weight)

    def _update_on_device(self, rows, weight, gradient, inverse_norm) -> None:
        remove_component(gradient, weight, inverse_norm)
        momentum, params = self.weight_mom[rows], self.params
        momentum.mul_(params.momentum).add_(gradient, alpha=params.gain * params.rescale_grad)
        momentum.add_(weight, alpha=params.gain * params.wd)
        weight.add_(momentum, alpha=-params.learning_rate if params.momentum_convention == "gradients" else 1.0)
        if not isinstance(rows, slice):
            self.weight[rows], self.weight_mom[rows] = weight, momentum


class DenseGradient:
    """Collects the gradient of all centers of this rank; zero for those that are not in the step.

    Args:
        weight: (L, E) centers.
        rescale_grad: factor of the gradient.

    Attributes:
        grad: (L, E).
    """

    def __init__(self, weight: torch.Tensor, rescale_grad: float):
        self.grad = torch.zeros_like(weight)
        self.rescale_grad = rescale_grad

    def __call__(self, rows, weight, gradient, inverse_norm) -> None:
        """As SGDUpdate."""
        remove_component(gradient, weight, inverse_norm)
        self.grad[rows] = gradient.mul_(self.rescale_grad)
