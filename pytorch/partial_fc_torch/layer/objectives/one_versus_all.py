"""The base of losses that classify an item once per class: as its label, or not.

Shapes: G global batch, P labels of a row, T classes of a tile.
"""

import torch
from torch.nn.functional import softplus

from .objective import LogSumExp, Losses, Objective


class SoftplusSum(LogSumExp):
    """Sums the negatives of a row as N = sum_j log(1 + exp(logit_j)), for losses of one class against all others.

    The sum of a tile or a rank is stored as N and its derivative by a term that is added to all logits.
    """

    @staticmethod
    def tile(logits: torch.Tensor, log_weights: torch.Tensor | None) -> torch.Tensor:
        """Returns the sums of a tile (2, G), and replaces its logits (G, T) by the derivatives of N."""
        terms = softplus(logits)
        logits.sigmoid_()
        if log_weights is not None:
            weights = log_weights.exp()
            terms.mul_(weights)
            logits.mul_(weights)
        return torch.stack([terms.sum(dim=1), logits.sum(dim=1)])

    @staticmethod
    def combine(sums: torch.Tensor) -> torch.Tensor:
        """Combines the sums of tiles or ranks (n, 2, G) float64 to (2, G)."""
        return sums.sum(dim=0)

    @staticmethod
    def negatives(sums: torch.Tensor) -> torch.Tensor:
        """Returns N (G,) for combined sums (2, G)."""
        return sums[0]

    @staticmethod
    def row_term(sums: torch.Tensor, by_negatives: torch.Tensor) -> torch.Tensor:
        """Returns the derivatives a (G,) of the losses with respect to N."""
        return by_negatives

    @staticmethod
    def gradients(logits: torch.Tensor, log_weights: torch.Tensor | None, row_term: torch.Tensor) -> None:
        """See LogSumExp.gradients; given a (G,)."""
        logits.sigmoid_().mul_(row_term.to(logits.dtype)[:, None])
        if log_weights is not None:
            logits.mul_(log_weights.exp())

    @staticmethod
    def factors(sums: torch.Tensor, row_term: torch.Tensor) -> torch.Tensor:
        """See LogSumExp.factors."""
        return row_term


class OneVersusAll(Objective):
    """A loss of binary classifications, one per class, with a bias that is added to all logits and learnt.

    Args:
        bias: its initial value.

    Attributes:
        bias: float32 scalar parameter.
    """

    term = SoftplusSum

    def __init__(self, bias: float):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.tensor(bias, dtype=torch.float32))

    def change_negatives(self, logits: torch.Tensor) -> torch.Tensor | None:
        """See Objective.change_negatives; adds the bias."""
        logits.add_(self.bias.detach())
        return None

    def losses(self, sums: torch.Tensor, targets: torch.Tensor, cosines: torch.Tensor, present: torch.Tensor) -> Losses:
        """See Objective.losses; includes the bias of the negatives in its derivative."""
        losses = super().losses(sums, targets, cosines, present)
        of_negatives = (losses.by_negatives * sums[1]).sum()
        by_parameters = zip(self.trained(), losses.by_parameters)  # a subclass may have others
        by = tuple(each + of_negatives if parameter is self.bias else each for parameter, each in by_parameters)
        return losses._replace(by_parameters=by)
