"""AdamW by row.

Shapes: T rows of a tile, E embedding.
"""

from __future__ import annotations

import torch

from .optimizer import RowOptimizer


class AdamW(RowOptimizer):
    """Adam with decoupled weight decay (arXiv 1711.05101).

    The bias of the moments is corrected by the number of updates of the row itself: with a sample, rows have different
    numbers of them. Where every row is in every step, it is torch.optim.AdamW.

    Args:
        betas: of the first and the second moment.
        eps: added to the root of the second moment.
        weight_decay: times the learning rate, the part of a center that a step takes away.
    """

    states = {"weight_exp_avg": True, "weight_exp_avg_sq": True, "weight_updates": False}

    def __init__(
        self, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.01
    ) -> None:
        self.betas = betas
        self.eps = eps
        self.weight_decay = weight_decay

    def update_rows(
        self, weight: torch.Tensor, gradient: torch.Tensor, states: dict[str, torch.Tensor], learning_rate: float
    ) -> None:
        """See RowOptimizer.update_rows."""
        first, second, updates = states.values()
        beta1, beta2 = self.betas
        updates.add_(1)  # float32 counts exactly to 2^24
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        # 1 - beta^n, without the cancellation that float32 has for the first updates.
        correction1, correction2 = (-torch.expm1(updates * torch.tensor(beta).log().item()) for beta in self.betas)
        weight.mul_(1 - learning_rate * self.weight_decay)
        denominator = second.sqrt().div_(correction2.sqrt_()).add_(self.eps)
        weight.sub_(torch.div(first, denominator, out=denominator).mul_(learning_rate / correction1))
