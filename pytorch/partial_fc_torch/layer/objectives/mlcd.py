"""MLCD: the loss of multi-label cluster discrimination (arXiv 2407.17331)."""

import torch
from torch.nn.functional import softplus

from .objective import Objective


class MLCD(Objective):
    """log(1 + exp(N)) + log(1 + sum_p exp(-t_p)): negatives and labels are separate sums."""

    reads_cosines = False

    def forward(self, negatives, targets, cosines, present):
        """See Objective.forward."""
        return softplus(negatives) + softplus(torch.where(present, -targets, -torch.inf).logsumexp(dim=1))
