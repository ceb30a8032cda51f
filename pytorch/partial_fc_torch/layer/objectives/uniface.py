"""UniFace: unified cross entropy, with one learnt threshold between labels and negatives."""

import math

from torch.nn.functional import softplus

from partial_fc.utils.options import checked

from .objective import mean_of_present
from .one_versus_all import OneVersusAll


class UniFace(OneVersusAll):
    """The unified cross entropy of UniFace (Zhou et al., ICCV 2023).

    The loss is the mean of log(1 + exp(-t_p - b)) over the labels p, plus lambda times the sum of log(1 + exp(l_j + b))
    over the negatives. -b is the threshold of the paper. The layer's margin is the margin of the paper, for instance
    CosFace with 0.4.

    Args:
        num_classes: C; the threshold begins at log(10 C), as in the authors' code.
        weight: lambda.
    """

    reads_cosines = False

    def __init__(self, scale: float, num_classes: int, weight: float = 1.0):
        super().__init__(-math.log(10 * num_classes))
        (self.weight,) = checked("uniface", weight=weight)

    def forward(self, negatives, targets, cosines, present):
        """See Objective.forward."""
        return mean_of_present(softplus(-targets - self.bias), present) + self.weight * negatives
