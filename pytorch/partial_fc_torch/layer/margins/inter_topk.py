"""Inter-top-k: the margin of ArcFace, with a penalty on the hardest negatives of an item.

Shapes: G global batch, T classes of a tile.
"""

import math
from typing import Any

import torch

from partial_fc.layer.margins import sine, target_logit
from partial_fc.utils.config import Setting
from partial_fc.utils.options import BOUNDS, checked

from .margin import Margin, Targets


class InterTopK(Margin):
    """The margin of ArcFace with the inter-top-k penalty (arXiv 2110.05042, section 2.2).

    The target logit is s cos(theta + m). The k negatives of an item with the largest cosines, over all ranks, have the
    logit s cos(theta - penalty). Negatives with the same cosine as the k-th one have it, too. The angle is at least 0;
    in WeSpeaker, whose recipes have the defaults, the logit falls again for angles below the penalty.

    See partial_fc/layer/margins.py for angles beyond pi.

    Args:
        s: the scale.
        m: the margin, an angle.
        k: number of negatives with a penalty.
        penalty: an angle.
    """

    slopes_negatives = True

    def __init__(self, s: float = 32.0, m: float = 0.2, k: int = 5, penalty: float = 0.06):
        super().__init__(s)
        self.m, self.penalty = checked("inter_topk", m=m, penalty=penalty)
        bounds: Any = BOUNDS["inter_topk"]["k"]
        self.hardest = Setting("k", 5, "", **bounds).check(k)  # an integer

    def targets(self, cosine: torch.Tensor, norms: torch.Tensor, labels: torch.Tensor) -> Targets:
        """See Margin.targets."""
        return Targets(*target_logit(cosine, (1.0, self.m, 0.0), torch))

    def negatives(self, logits: torch.Tensor, targets: Targets) -> torch.Tensor:
        """See Margin.negatives."""
        assert targets.hardest is not None, "set by the layer"
        others = logits < targets.hardest[:, None]
        cosine = (logits / self.scale).clamp_(-1.0, 1.0)  # labels may be -inf
        sines = sine(cosine, torch)
        at_zero = cosine >= math.cos(self.penalty)
        turned = (cosine * math.cos(self.penalty)).add_(sines, alpha=math.sin(self.penalty)).masked_fill_(at_zero, 1.0)
        logits.copy_(torch.where(others, logits, turned.mul_(self.scale)))
        slope = cosine.div_(sines).mul_(-math.sin(self.penalty)).add_(math.cos(self.penalty))
        return slope.masked_fill_(at_zero, 0.0).masked_fill_(others, 1.0)
