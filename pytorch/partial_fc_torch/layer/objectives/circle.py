"""Circle: the unified loss of pairs, without its weights (arXiv 2002.10857, equation 1)."""

import torch
from torch.nn.functional import softplus

from .objective import Objective


class Circle(Objective):
    """log(1 + exp(N) sum_p exp(-t_p)): every label against every negative."""

    reads_cosines = False

    def forward(self, negatives, targets, cosines, present):
        """See Objective.forward."""
        return softplus(negatives + torch.where(present, -targets, -torch.inf).logsumexp(dim=1))
