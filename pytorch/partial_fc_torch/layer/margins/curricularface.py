"""CurricularFace: the margin of ArcFace, with a growing weight of hard negatives.

Shapes: G global batch, T classes of a tile.
"""

import torch

from partial_fc.layer.margins import target_logit
from partial_fc.utils.options import checked

from .margin import Margin, Targets

_WEIGHT = 0.01  # of a step in the average t


class CurricularFace(Margin):
    """The margin of CurricularFace (arXiv 2004.00288, equations 6 to 10).

    The target logit is s cos(theta + m). A negative is hard if its cosine c exceeds the row's cos(theta + m); its logit
    is then s c (t + c). t is the exponential average of the targets' cosines over steps, initially 0. See
    partial_fc/layer/margins.py for angles beyond pi.

    Args:
        s: the scale.
        m: the margin.

    Attributes:
        t: float64 scalar.
    """

    needs_one_label = True
    needs_all_targets = True
    slopes_negatives = True
    t: torch.Tensor

    def __init__(self, s: float = 64.0, m: float = 0.5):
        super().__init__(s)
        (self.m,) = checked("curricularface", m=m)
        self.register_buffer("t", torch.tensor(0.0, dtype=torch.float64))

    def targets(self, cosine: torch.Tensor, norms: torch.Tensor, labels: torch.Tensor) -> Targets:
        """See Margin.targets."""
        if self.training:
            # A cosine is -inf if no rank has sampled the row's center; such a row does not change t.
            self.t += _WEIGHT * torch.where(torch.isneginf(cosine), 0.0, cosine - self.t).mean()
        value, slope = target_logit(cosine, (1.0, self.m, 0.0), torch)
        return Targets(value, slope, of_negatives=torch.stack([value, self.t.to(value).expand_as(value)]))

    def negatives(self, logits: torch.Tensor, targets: Targets) -> torch.Tensor:
        """See Margin.negatives."""
        assert targets.of_negatives is not None, "from targets()"
        margin_cosine, t = targets.of_negatives.to(logits.dtype)[..., None]
        slope = logits / self.scale  # the cosines; changed in place below, because the array is as large as the logits
        easy = slope <= margin_cosine
        logits.mul_(slope.add_(t).masked_fill_(easy, 1.0))
        return slope.mul_(2).sub_(t).masked_fill_(easy, 1.0)  # t + 2c
