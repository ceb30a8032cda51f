"""SphereFace2: binary classifications with a margin on both sides.

Shapes: G global batch, T classes of a tile.
"""

import math

import torch
from torch.nn.functional import softplus

from partial_fc.utils.options import checked

from .objective import mean_of_present
from .one_versus_all import OneVersusAll


class SphereFace2(OneVersusAll):
    """The loss of SphereFace2-C (arXiv 2108.01513, section 3.2) with g(c) = 2 ((c + 1) / 2)^t - 1.

    lambda / s times the mean of log(1 + exp(-s (g(c_p) - m) - b)) over the labels p, plus (1 - lambda) / s times the
    sum of log(1 + exp(s (g(c_j) + m) + b)) over the negatives. It replaces what the layer's margin does to the labels;
    the scale s of the margin (r in the paper), its change of negatives and its penalty stay.

    Args:
        scale: s.
        num_classes: C; determines the first bias b, as in the authors' code.
        m: the margin.
        t: the exponent of g.
        weight: lambda.
        loss_weight: a factor of the loss; the authors' code has 50.
    """

    slopes_negatives = True

    def __init__(
        self,
        scale: float,
        num_classes: int,
        m: float = 0.4,
        t: float = 3.0,
        weight: float = 0.7,
        loss_weight: float = 1.0,
    ):
        m, t, weight, loss_weight = checked("sphereface2", m=m, t=t, weight=weight, loss_weight=loss_weight)
        # With this bias, the loss of a feature at right angles to all centers has no derivative by the bias.
        ratio = weight / ((1 - weight) * max(num_classes - 1, 1))
        target, negative = (scale * (2 * 0.5**t - 1 + sign * m) for sign in (-1, 1))
        product = 4 * ratio * math.exp(target - negative)
        root = math.sqrt((1 - ratio) ** 2 + product)
        # Both forms are the same number; each subtracts nothing where it is used.
        total = 1 - ratio + root if ratio < 1 else product / (root - (1 - ratio))
        super().__init__(math.log(2 * ratio) - negative - math.log(total))
        self.scale, self.m, self.t, self.weight, self.loss_weight = scale, m, t, weight, loss_weight

    def forward(self, negatives, targets, cosines, present):
        """See Objective.forward."""
        half = (cosines / self.scale + 1).clamp(min=0) / 2
        logits = self.scale * (2 * half**self.t - 1 - self.m) + self.bias
        positives = self.weight * mean_of_present(softplus(-logits), present)
        return self.loss_weight / self.scale * (positives + (1 - self.weight) * negatives)

    def change_negatives(self, logits: torch.Tensor) -> torch.Tensor:
        """See Objective.change_negatives."""
        half = (logits / self.scale).add_(1).clamp_(min=0).mul_(0.5)
        slope = half.pow(self.t - 1)
        torch.mul(slope, half, out=logits).mul_(2 * self.scale).add_(self.scale * (self.m - 1)).add_(self.bias.detach())
        return slope.mul_(self.t)
