"""The margins of the target logit, as objects of PyTorch.

Shapes: G global batch, C classes.
"""

from __future__ import annotations

import torch
from torch.autograd.function import once_differentiable

from partial_fc.layer.margins import check_margins, check_threshold, target_logit


class CombinedMarginLoss(torch.nn.Module):
    """Margins of the target logit s (cos(m1 theta + m2) - m3); see partial_fc/layer/margins.py for angles beyond pi.

    The layers read ``margins`` and ``scale``. A call computes the logits from cosines.

    Args:
        s: the scale.
        m1, m2, m3: the margins; all of them act.
        interclass_filtering_threshold: leaves out the negatives of a row whose cosine is higher, which may be of the
            same class under another label; 0: none. (arcface_torch takes 0 for their logits instead.)
        straight_through: takes the derivative of the target logit / s by the cosine as 1, as arcface_torch does since
            December 2022, instead of the exact one.

    Raises:
        ValueError: A margin is not allowed, or ``interclass_filtering_threshold`` is not in [0, 1).
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
        super().__init__()
        check_margins((m1, m2, m3))
        check_threshold(interclass_filtering_threshold)
        self.margins = (m1, m2, m3)
        self.scale = s
        self.interclass_filtering_threshold = interclass_filtering_threshold
        self.straight_through = straight_through

    def target(self, cosine: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns target logit / s and its derivative by the cosine, both float64, see margins.target_logit."""
        value, slope = target_logit(cosine.double(), self.margins, torch)
        return value, torch.ones_like(slope) if self.straight_through else slope

    def filter_negatives(self, logits: torch.Tensor) -> torch.Tensor:
        """Replaces logits, s times cosines, above the threshold by the lowest number of their type, in place.

        Their exponentials are then 0 beside any other logit. The caller sets the target logits afterwards.
        """
        if self.interclass_filtering_threshold:
            above = logits > self.scale * self.interclass_filtering_threshold
            logits.masked_fill_(above, torch.finfo(logits.dtype).min)
        return logits

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Returns the logits with margin and scale.

        Args:
            logits: (G, C) cosines; they stay as they are.
            labels: (G,) or (G, 1) integers, -1 for a row without a target.

        Returns:
            (G, C), differentiable by ``logits``.
        """
        labels = labels.reshape(-1)
        rows = torch.where(labels != -1)[0]
        columns = labels[rows].long()
        targets = _TargetLogit.apply(logits[rows, columns], self)
        negatives = self.filter_negatives(self.scale * logits)
        return negatives.index_put((rows, columns), self.scale * targets)


class ArcFace(CombinedMarginLoss):
    """The margin of ArcFace, s cos(theta + margin); arguments as of CombinedMarginLoss."""

    def __init__(self, s: float = 64.0, margin: float = 0.5, *, straight_through: bool = False):
        super().__init__(s, 1.0, margin, 0.0, straight_through=straight_through)


class CosFace(CombinedMarginLoss):
    """The margin of CosFace, s (cos(theta) - m); arguments as of CombinedMarginLoss."""

    def __init__(self, s: float = 64.0, m: float = 0.40):
        super().__init__(s, 1.0, 0.0, m)


class _TargetLogit(torch.autograd.Function):
    """Target logits / s of cosines (n,). PyTorch's derivative of arccos would be infinite at -1 and 1."""

    @staticmethod
    def forward(ctx, cosine, loss):
        value, slope = loss.target(cosine.detach())
        ctx.save_for_backward(slope.to(cosine))
        return value.to(cosine)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_value):
        (slope,) = ctx.saved_tensors
        return d_value * slope, None
