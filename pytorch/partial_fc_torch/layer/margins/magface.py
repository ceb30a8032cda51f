"""MagFace: a margin that grows with the norm of the feature, and a regularizer that makes the norms grow.

Shapes: G global batch.
"""

import torch

from partial_fc.layer.margins import angle, psi, sine
from partial_fc.utils.options import checked

from .margin import Margin, Targets


class MagFace(Margin):
    """The margin of MagFace (arXiv 2103.06627, equation 3).

    With a = |x| clipped to [l_a, u_a], the target logit is s cos(theta + m(a)), where m grows linearly from l_m at l_a
    to u_m at u_a. The regularizer lambda_g (1 / a + a / u_a^2) is added to a row's loss. The gradients of both by the
    norm are 0 outside of the interval. See partial_fc/layer/margins.py for angles beyond pi.

    Args:
        s: the scale.
        l_a, u_a: the interval of norms.
        l_m, u_m: the margins at its ends.
        lambda_g: the weight of the regularizer.

    Raises:
        ValueError: An argument is out of bounds, l_a >= u_a, or l_m > u_m.
    """

    def __init__(
        self,
        s: float = 64.0,
        l_a: float = 10.0,
        u_a: float = 110.0,
        l_m: float = 0.45,
        u_m: float = 0.8,
        lambda_g: float = 35.0,
    ):
        super().__init__(s)
        self.l_a, self.u_a, self.l_m, self.u_m, self.lambda_g = checked(
            "magface", l_a=l_a, u_a=u_a, l_m=l_m, u_m=u_m, lambda_g=lambda_g
        )
        if not (self.l_a < self.u_a and self.l_m <= self.u_m):
            raise ValueError(f"MagFace has l_a={l_a}, u_a={u_a}, l_m={l_m}, u_m={u_m}, but needs l_a < u_a, l_m <= u_m")

    def targets(self, cosine: torch.Tensor, norms: torch.Tensor, labels: torch.Tensor) -> Targets:
        """See Margin.targets."""
        a, slope = norms.clip(self.l_a, self.u_a), (self.u_m - self.l_m) / (self.u_a - self.l_a)
        value, fall = psi(angle(cosine, torch) + self.l_m + slope * (a - self.l_a), torch)
        inside = a == norms
        return Targets(
            value,
            by_cosine=fall / sine(cosine, torch),
            by_norm=torch.where(inside, -slope * fall, 0.0),
            penalty=self.lambda_g * (1 / a + a / self.u_a**2),
            penalty_by_norm=torch.where(inside, self.lambda_g * (1 / self.u_a**2 - 1 / a**2), 0.0),
        )
