"""The margins of SphereFace, ArcFace and CosFace in one formula.

Shapes: G global batch, C classes.
"""

import torch
from torch.autograd.function import once_differentiable

from partial_fc.layer.margins import target_logit
from partial_fc.utils.options import checked

from .margin import Margin, Targets


class CombinedMarginLoss(Margin):
    """The target logit s (cos(m1 theta + m2) - m3); see partial_fc/layer/margins.py for angles beyond pi.

    Calling the module computes logits from cosines.

    Args:
        s: the scale.
        m1, m2, m3: the margins, which may be combined.
        interclass_filtering_threshold: excludes negatives with a higher cosine, which may have the same identity under
            another label; 0 excludes none. (arcface_torch sets their logits to 0 instead.)
        straight_through: uses 1 as the derivative of the target logit / s by the cosine, as arcface_torch has done
            since December 2022, instead of the exact derivative.

    Raises:
        ValueError: An argument is out of bounds, see partial_fc/utils/options.py.
    """

    def __init__(
        self,
        s: float,
        m1: float,
        m2: float,
        m3: float,
        interclass_filtering_threshold: float = 0,
        *,
        straight_through: bool = False,
    ):
        super().__init__(s)
        threshold = interclass_filtering_threshold
        m1, m2, m3, self.interclass_filtering_threshold = checked(
            "combined", m1=m1, m2=m2, m3=m3, interclass_filtering_threshold=threshold
        )
        self.margins = (m1, m2, m3)
        self.straight_through = straight_through

    def targets(self, cosine: torch.Tensor, norms: torch.Tensor, labels: torch.Tensor) -> Targets:
        """See Margin.targets and margins.target_logit."""
        return self.target(cosine)

    def target(self, cosine: torch.Tensor) -> Targets:
        """Returns the targets for cosines of any type."""
        value, slope = target_logit(cosine.double(), self.margins, torch)
        return Targets(value, torch.ones_like(slope) if self.straight_through else slope)

    def negatives(self, logits: torch.Tensor, targets: Targets) -> None:
        """See Margin.negatives; excludes the logits above the threshold."""
        self.filter(logits)

    def filter(self, logits: torch.Tensor) -> None:
        """Replaces logits above the threshold by the lowest value of their type, whose exponential is 0."""
        if self.interclass_filtering_threshold:
            above = logits > self.scale * self.interclass_filtering_threshold
            logits.masked_fill_(above, torch.finfo(logits.dtype).min)

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Returns the logits with margin and scale.

        Args:
            logits: (G, C) cosines; not modified.
            labels: (G,) or (G, 1) integers, -1 for a row without a target.

        Returns:
            (G, C), differentiable with respect to ``logits``.
        """
        labels = labels.reshape(-1)
        rows = torch.where(labels != -1)[0]
        columns = labels[rows].long()
        targets = _TargetLogit.apply(logits[rows, columns], self)
        scaled = self.scale * logits
        self.filter(scaled)
        return scaled.index_put((rows, columns), self.scale * targets)


class ArcFace(CombinedMarginLoss):
    """The margin of ArcFace, s cos(theta + margin); see CombinedMarginLoss for the arguments."""

    def __init__(self, s: float = 64.0, margin: float = 0.5, *, straight_through: bool = False):
        super().__init__(s, 1.0, margin, 0.0, straight_through=straight_through)


class CosFace(CombinedMarginLoss):
    """The margin of CosFace, s (cos(theta) - m); see CombinedMarginLoss for the arguments."""

    def __init__(self, s: float = 64.0, m: float = 0.40):
        super().__init__(s, 1.0, 0.0, m)


class _TargetLogit(torch.autograd.Function):
    """Target logits / s of cosines (n,); PyTorch's derivative of arccos would be infinite at -1 and 1."""

    @staticmethod
    def forward(ctx, cosine, margin):
        targets = margin.target(cosine.detach())
        ctx.save_for_backward(targets.by_cosine.to(cosine))
        return targets.value.to(cosine)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_value):
        (slope,) = ctx.saved_tensors
        return d_value * slope, None
