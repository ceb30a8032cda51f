"""Adagrad with one number of state per row.

Shapes: T rows of a tile, E embedding.
"""

from __future__ import annotations

import torch

from .optimizer import RowOptimizer


class Adagrad(RowOptimizer):
    """Row-wise Adagrad, as recommender systems train tables of embeddings (arXiv 1906.00091).

    The state of a row is the sum over its updates of the mean of its squared gradient, instead of a sum for each of
    its numbers.

    Args:
        eps: added to the root of the state.
        weight_decay: times a center, is added to its gradient.
    """

    states = {"weight_sum": False}

    def __init__(self, eps: float = 1e-10, weight_decay: float = 0.0) -> None:
        self.eps = eps
        self.weight_decay = weight_decay

    def update_rows(
        self, weight: torch.Tensor, gradient: torch.Tensor, states: dict[str, torch.Tensor], learning_rate: float
    ) -> None:
        """See RowOptimizer.update_rows."""
        (total,) = states.values()
        gradient.add_(weight, alpha=self.weight_decay)
        total.add_(gradient.square().mean(dim=1, keepdim=True))
        weight.sub_(gradient.mul_(learning_rate / (total.sqrt() + self.eps)))
