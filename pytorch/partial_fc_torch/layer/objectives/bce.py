"""Binary cross entropy: one binary classification per class."""

import math

from torch.nn.functional import softplus

from .objective import mean_of_present
from .one_versus_all import OneVersusAll


class BCE(OneVersusAll):
    """The mean of log(1 + exp(-t_p - b)) over the labels p, plus the sum of log(1 + exp(l_j + b)) over the negatives.

    Args:
        num_classes: C; the bias b begins at -log(C - 1), where a label and all negatives have the same weight.
    """

    reads_cosines = False

    def __init__(self, scale: float, num_classes: int):
        super().__init__(-math.log(max(num_classes - 1, 1)))

    def forward(self, negatives, targets, cosines, present):
        """See Objective.forward."""
        return mean_of_present(softplus(-targets - self.bias), present) + negatives
