"""Softmax in which the other labels of a row count as negatives.

Shapes: G global batch, P labels of a row.
"""

import torch

from .objective import Objective, mean_of_present


class SharedSoftmax(Objective):
    """The mean of log(exp(N) + exp(t_p) + sum_q exp(z_q)) - t_p over the labels p.

    q are the other labels, and z_q their logits without margin.

    P softmaxes over all classes with one label each, as OneVision-Encoder trains them, have this mean.
    """

    def forward(self, negatives, targets, cosines, present):
        """See Objective.forward."""
        count = present.shape[1]
        others = present[:, None, :] & ~torch.eye(count, dtype=torch.bool, device=present.device)
        as_negatives = torch.where(others, cosines[:, None, :], -torch.inf)
        terms = [negatives[:, None, None].expand(-1, count, 1), targets[:, :, None], as_negatives]
        return mean_of_present(torch.cat(terms, dim=2).logsumexp(dim=2) - targets, present)
