"""Softmax: the cross entropy of each label against the classes that are not labels of the row.

Shapes: G global batch, P labels of a row.
"""

import torch
from torch.nn.functional import softplus

from .objective import LogSumExp, Losses, Objective, unlabeled


class Softmax(Objective):
    """The mean of log(exp(N) + exp(t_p)) - t_p over the labels p.

    The denominator of a label leaves out the other labels of the row. With one label, this is the softmax of the margin
    losses.
    """

    reads_cosines = False

    def losses(self, sums: torch.Tensor, targets: torch.Tensor, cosines: torch.Tensor, present: torch.Tensor) -> Losses:
        """See Objective.losses; without autograd, because most trainings have this objective."""
        negatives = LogSumExp.negatives(sums)
        above = negatives[:, None] - targets
        share = present.to(targets.dtype) / present.sum(dim=1, keepdim=True).clamp(min=1)
        values, slopes = (torch.where(present, of(above) * share, 0.0) for of in (softplus, torch.sigmoid))
        losses = torch.where(present.any(dim=1), values.sum(dim=1), unlabeled(negatives))
        return Losses(losses, slopes.sum(dim=1), -slopes, torch.zeros_like(slopes))
