"""AdaFace: a margin that depends on the norm of the feature, which measures the quality of the image.

Shapes: G global batch.
"""

import torch

from partial_fc.layer.margins import angle, sine
from partial_fc.utils.options import checked

from .margin import Margin, Targets

_NORMS = 0.001, 100.0  # bounds to which the authors' code clips norms, so that outliers do not move the statistics
_EPSILON = 0.001  # added to the standard deviation of the norms


class AdaFace(Margin):
    """The margin of AdaFace (arXiv 2204.00964, equations 13 to 16).

    With z = h (|x| - mean) / std, clipped to [-1, 1], the target logit is s (cos(theta - m z) - m - m z), where the
    angle is clipped to [0, pi]. z has no gradient. Mean and standard deviation of the features' norms in the global
    batch are averaged exponentially over steps.

    Args:
        s: the scale.
        m: the margin.
        h: determines which part of the norms' distribution maps into [-1, 1].
        t_alpha: weight of a step in the averages.

    Attributes:
        norm_mean, norm_std: the averages, float64 scalars.
    """

    norm_mean: torch.Tensor
    norm_std: torch.Tensor

    def __init__(self, s: float = 64.0, m: float = 0.4, h: float = 0.333, t_alpha: float = 0.01):
        super().__init__(s)
        self.m, self.h, self.t_alpha = checked("adaface", m=m, h=h, t_alpha=t_alpha)
        self.register_buffer("norm_mean", torch.tensor(20.0, dtype=torch.float64))
        self.register_buffer("norm_std", torch.tensor(100.0, dtype=torch.float64))

    def targets(self, cosine: torch.Tensor, norms: torch.Tensor, labels: torch.Tensor) -> Targets:
        """See Margin.targets."""
        norms = norms.clip(*_NORMS)
        if self.training:
            std = norms.std(correction=min(1, len(norms) - 1))  # 0 for a batch of one
            self.norm_mean += self.t_alpha * (norms.mean() - self.norm_mean)
            self.norm_std += self.t_alpha * (std - self.norm_std)
        z = (self.h * (norms - self.norm_mean) / (self.norm_std + _EPSILON)).clip(-1.0, 1.0)
        turned = (angle(cosine, torch) - self.m * z).clip(0.0, torch.pi)
        # Where the angle is clipped its sine is 0, and so is the derivative.
        return Targets(turned.cos() - self.m - self.m * z, turned.sin() / sine(cosine, torch))
