"""AdamW with bias correction per row.

Shapes: T rows of a tile, E embedding.
"""

import torch

from partial_fc.layer.center_states import CENTER_STATES

from .optimizer import RowOptimizer


class AdamW(RowOptimizer):
    """Adam with decoupled weight decay (arXiv 1711.05101, algorithm 2).

    The bias correction of a row's moments uses the number n of updates of this row, which differs between rows if
    centers are sampled. If every row is in every step, the result is torch.optim.AdamW's.

        m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g^2
        W = (1 - lr weight_decay) W - lr (m / (1 - beta1^n)) / (sqrt(v / (1 - beta2^n)) + eps)

    Args:
        betas: decay rates of the first and the second moment.
        eps: added to the root of the second moment.
        weight_decay: times the learning rate, it is the fraction of a center that a step subtracts.
    """

    states = CENTER_STATES["adamw"]

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
        first, second, updates = (states[name] for name in self.states)
        beta1, beta2 = self.betas
        updates.add_(1)  # float32 counts exactly to 2^24, where both corrections are 1
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        # In float64, because 1 - beta^n is a difference of nearly equal numbers for small n.
        correction1, correction2 = (1 - beta ** updates.double() for beta in self.betas)
        # Multiplying numerator and denominator by correction1 saves a pass over the rows.
        factor, eps = correction1 / correction2.sqrt(), correction1 * self.eps
        denominator = torch.sqrt(second, out=gradient).mul_(factor.to(weight.dtype)).add_(eps.to(weight.dtype))
        weight.mul_(1 - learning_rate * self.weight_decay).addcdiv_(first, denominator, value=-learning_rate)
