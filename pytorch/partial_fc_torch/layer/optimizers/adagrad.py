"""Adagrad with one state value per row.

Shapes: T rows of a tile, E embedding.
"""

import torch

from partial_fc.layer.center_states import CENTER_STATES

from ..rows import dot_rows
from .optimizer import RowOptimizer


class Adagrad(RowOptimizer):
    """Row-wise Adagrad, which PBG (arXiv 1903.12287), FBGEMM and TorchRec use for embedding tables.

    The state n of a row is the sum over its updates of the mean squared gradient; torch.optim.Adagrad has a sum per
    element. The weight decay is part of the gradient.

        g = g + weight_decay W        n = n + mean(g^2)        W = W - lr g / (sqrt(n) + eps)

    Args:
        eps: added to the root of the state.
        weight_decay: adds this multiple of a center to its gradient.
    """

    states = CENTER_STATES["adagrad"]

    def __init__(self, eps: float = 1e-10, weight_decay: float = 0.0) -> None:
        self.eps = eps
        self.weight_decay = weight_decay

    def update_rows(
        self, weight: torch.Tensor, gradient: torch.Tensor, states: dict[str, torch.Tensor], learning_rate: float
    ) -> None:
        """See RowOptimizer.update_rows."""
        total = states["weight_sum"]
        gradient.add_(weight, alpha=self.weight_decay)
        total.add_(dot_rows(gradient, gradient)[:, None], alpha=1 / gradient.shape[1])
        weight.addcmul_(gradient, total.sqrt().add_(self.eps).reciprocal_(), value=-learning_rate)
