"""The products of a tile with unit rows in half precision.

Half precision rounds the elements of both unit rows, and the probabilities; sums are float32.

Error bounds. Let u be the unit roundoff (2^-8 for bfloat16, 2^-11 for float16) and |x| = |w| = 1. Rounding the elements
changes a dot product by at most (2u + u^2) sum |x_i w_i| <= 2u + u^2 (Cauchy-Schwarz), and a logit by at most s (2u +
u^2). On a CPU, PyTorch also rounds the product to bfloat16, which adds s u (1 + u)^2. If each logit of a row is off by
at most d, the loss is off by at most d, and the errors of the row's probabilities sum to at most exp(2d) - 1. The
product with the probabilities rounds these, a unit row and, on a CPU, the result. The gradient of a row's loss by the
unit row of its feature is therefore off by at most s (exp(2d) (1 + u)^3 - 1) in the Euclidean norm; the same bound
holds for the errors of the gradients by the centers' unit rows, summed over the centers. The bounds neglect the
rounding of float32 sums, margins that change negatives, and float16 values below 2^-14: multiplied by 2^12, a
probability below 2^-26 is off by at most 2^-37, which adds s S 2^-37 to the gradient of a row with S negatives.

Shapes: G global batch, T centers of a tile, E embedding.
"""

import torch

from .products import Features, Operands, Products


class HalfProducts(Products):
    """Like Products, with unit rows in half precision.

    Args:
        scale: s.
        dtype: "bfloat16" or "float16".
    """

    def __init__(self, scale: float, dtype: str):
        super().__init__(scale, dtype)
        self._type = getattr(torch, dtype)

    @property
    def unit_type(self) -> torch.dtype:
        """See Products.unit_type."""
        return self._type

    def mm(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """See Products.mm; sums are float32."""
        if left.is_cuda:
            return torch.mm(left, right, out_dtype=torch.float32)
        if left.dtype == torch.float16:  # CPUs have no fast product in float16
            return torch.mm(left.float(), right.float())
        return torch.mm(left, right).float()

    def operand(self, unit: torch.Tensor) -> torch.Tensor:
        """Returns x in half precision, without s."""
        return unit.to(self._type)

    def logits(self, features: Features, weight: torch.Tensor, inverse_norm: torch.Tensor) -> torch.Tensor:
        """See Products.logits."""
        return self.mm(features.operand, self._unit_centers(weight, inverse_norm).t()).mul_(self.scale)

    def prepare(self, d_logits: torch.Tensor, weight: torch.Tensor, inverse_norm: torch.Tensor) -> Operands:
        """See Products.prepare."""
        factor: torch.Tensor | float = 1.0
        if self._type == torch.float16:
            factor = float16_factor(d_logits.abs().amax())
        d_logits = d_logits.mul_(factor).to(self._type)
        return Operands(d_logits, self._unit_centers(weight, inverse_norm), 1 / factor)

    def add_feature_gradient(self, operands: Operands, d_unit: torch.Tensor) -> None:
        """See Products.add_feature_gradient."""
        product = self.mm(operands.d_logits, operands.centers)
        d_unit.add_(product.mul_(operands.factor) if self._type == torch.float16 else product)

    def center_gradient(self, operands: Operands, features: Features, inverse_norm: torch.Tensor) -> torch.Tensor:
        """See Products.center_gradient."""
        gradient = self.mm(operands.d_logits.t(), features.operand)
        return gradient.mul_((self.scale * operands.factor * inverse_norm)[:, None])

    def _unit_centers(self, weight, inverse_norm):
        # Rows of any norm may exceed the range of float16. For bfloat16, dividing the norms out of the products instead
        # would take as long.
        return torch.mul(weight, inverse_norm[:, None]).to(self._type)


def float16_factor(largest: torch.Tensor) -> torch.Tensor:
    """Returns a power of 2 by which float16 gradients by the logits are multiplied, a scalar like its argument.

    float16 has no values between 0 and 2^-24, where most probabilities of many classes are, and none above 65504. The
    factor is 2^12, which suits probabilities, or less if an objective or a margin has larger derivatives.

    Args:
        largest: scalar, an upper bound of their absolute values.
    """
    return (15 - largest.log2().ceil()).exp2().clamp(max=2.0**12)
