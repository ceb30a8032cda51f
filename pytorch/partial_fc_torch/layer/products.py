"""The three matrix products of a tile: float32 rows (on a GPU also in TF32), or unit rows in half precision.

Half precision rounds the elements of both unit rows, and the probabilities; sums are float32. The labels' logits and
their part of the gradients are computed from float32 rows elsewhere, see step.py.

Error bounds. Let u be the unit roundoff (2^-8 for bfloat16, 2^-11 for float16) and |x| = |w| = 1. Rounding the elements
changes a dot product by at most (2u + u^2) sum |x_i w_i| <= 2u + u^2 (Cauchy-Schwarz), and a logit by at most s (2u +
u^2). On a CPU, PyTorch also rounds the product to bfloat16, which adds s u (1 + u)^2. If each logit of a row is off by
at most d, the loss is off by at most d, and the errors of the row's probabilities sum to at most exp(2d) - 1. The
product with the probabilities rounds these, a unit row and, on a CPU, the result. The gradient of a row's loss by the
unit row of its feature is therefore off by at most s (exp(2d) (1 + u)^3 - 1) in the Euclidean norm; the same bound
holds for the errors of the gradients by the centers' unit rows, summed over the centers. The bounds neglect the
rounding of float32 sums, float16 values below 2^-14, and margins that change negatives.

TF32 has the exponents of float32 and 10 bits of its mantissa. Hardware may truncate, so the roundoff is u = 2^-10. A
GPU rounds only the elements of both operands of a product, so a logit is off by at most d = s (2u + u^2), the loss by
d, and a gradient by at most s (exp(2d) (1 + u)^2 - 1).

Shapes: G global batch, T centers of a tile, E embedding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from .rows import inverse_norms

TYPES = ("float32", "tf32", "bfloat16", "float16")


class Features:
    """The features of a batch in the forms that both passes need.

    Args:
        features: (G, E) floating point.

    Attributes:
        inverse_norm: (G,) 1 / |X|.
        unit: (G, E) unit rows x.
        operand: (G, E), the operand of the products, see Float32Products.operand.
    """

    def __init__(self, features: torch.Tensor, products: Float32Products | HalfProducts):
        self.inverse_norm = inverse_norms(features)
        self.unit = features * self.inverse_norm[:, None]
        self.operand = products.operand(self.unit)


class Operands(NamedTuple):
    """The operands of the gradient products of a tile."""

    d_logits: torch.Tensor  # (G, T)
    centers: torch.Tensor  # (T, E)


class Float32Products:
    """Products of centers W with unit rows x of the features; the centers' norms are divided out of the results.

    Args:
        scale: s.
        tf32: uses TF32 on a GPU; otherwise torch.backends.cuda.matmul decides, which is float32 by default.
    """

    def __init__(self, scale: float, tf32: bool = False):
        self.scale, self.tf32 = scale, tf32

    def operand(self, unit: torch.Tensor) -> torch.Tensor:
        """Returns the other methods' operand for the unit rows (G, E) float32 of the features: s x."""
        return unit * self.scale

    def logits(self, features: Features, weight: torch.Tensor, inverse_norm: torch.Tensor) -> torch.Tensor:
        """Returns the logits s x.w, (G, T) float32.

        Args:
            features: features of the batch.
            weight: (T, E) float32 centers.
            inverse_norm: (T,) 1 / |W|.
        """
        with _in_tf32(self.tf32):
            return torch.mm(features.operand, weight.t()).mul_(inverse_norm)

    def prepare(self, d_logits: torch.Tensor, weight: torch.Tensor, inverse_norm: torch.Tensor) -> Operands:
        """Returns the operands of both gradient products of a tile.

        Args:
            d_logits: (G, T) gradient with respect to s times the cosines; overwritten.
            weight, inverse_norm: see `logits`.
        """
        return Operands(d_logits.mul_(inverse_norm), weight)

    def add_feature_gradient(self, operands: Operands, d_unit: torch.Tensor) -> None:
        """Adds the gradient with respect to the unit rows of the features, divided by s, to d_unit (G, E) float32."""
        with _in_tf32(self.tf32):
            d_unit.addmm_(operands.d_logits, operands.centers)

    def center_gradient(self, operands: Operands, features: Features, inverse_norm: torch.Tensor) -> torch.Tensor:
        """Returns the gradient with respect to the centers (T, E) float32, see TileGradient.raw."""
        with _in_tf32(self.tf32):
            return torch.mm(operands.d_logits.t(), features.operand)


class HalfProducts:
    """Like Float32Products, with unit rows in half precision.

    Args:
        scale: s.
        dtype: bfloat16 or float16.
    """

    def __init__(self, scale: float, dtype: torch.dtype):
        self.scale = scale
        self.dtype = dtype
        # float16 has no values between 0 and 2^-24, where most probabilities of many classes are, and none above 65504.
        # With this factor, the product of a probability, at most 1, and the slope of a margin may be up to 15.
        self._factor = 2.0**12 if dtype == torch.float16 else 1.0

    def operand(self, unit: torch.Tensor) -> torch.Tensor:
        """Returns x in half precision, without s."""
        return unit.to(self.dtype)

    def logits(self, features: Features, weight: torch.Tensor, inverse_norm: torch.Tensor) -> torch.Tensor:
        """See Float32Products.logits."""
        return _float32_product(features.operand, self._unit_centers(weight, inverse_norm).t()).mul_(self.scale)

    def prepare(self, d_logits: torch.Tensor, weight: torch.Tensor, inverse_norm: torch.Tensor) -> Operands:
        """See Float32Products.prepare."""
        return Operands(d_logits.mul_(self._factor).to(self.dtype), self._unit_centers(weight, inverse_norm))

    def add_feature_gradient(self, operands: Operands, d_unit: torch.Tensor) -> None:
        """See Float32Products.add_feature_gradient."""
        d_unit.add_(_float32_product(operands.d_logits, operands.centers), alpha=1 / self._factor)

    def center_gradient(self, operands: Operands, features: Features, inverse_norm: torch.Tensor) -> torch.Tensor:
        """See Float32Products.center_gradient."""
        gradient = _float32_product(operands.d_logits.t(), features.operand)
        return gradient.mul_((self.scale / self._factor * inverse_norm)[:, None])

    def _unit_centers(self, weight, inverse_norm):
        # Rows of any norm may exceed the range of float16. For bfloat16, dividing the norms out of the products instead
        # would take as long.
        return torch.mul(weight, inverse_norm[:, None]).to(self.dtype)


def products_of(dtype: torch.dtype | str, scale: float) -> Float32Products | HalfProducts:
    """Returns the products for a type.

    Args:
        dtype: one of TYPES, or a dtype of PyTorch with such a name.
        scale: s.

    Raises:
        ValueError: The type is not one of TYPES.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in TYPES:
        raise ValueError(f"layer_dtype is {dtype}, expected auto or one of {', '.join(TYPES)}")
    if name in ("float32", "tf32"):
        return Float32Products(scale, name == "tf32")
    return HalfProducts(scale, getattr(torch, name))


@contextmanager
def _in_tf32(wanted: bool) -> Iterator[None]:
    """A context in which float32 products on GPUs use TF32, if wanted; restores the user's setting for the backbone."""
    matmul = torch.backends.cuda.matmul
    if not wanted or matmul.fp32_precision == "tf32":
        yield
        return
    # Setting allow_tf32 also sets fp32_precision; if the two differ, products raise an error.
    matmul.allow_tf32 = True
    try:
        yield
    finally:
        matmul.allow_tf32 = False


def _float32_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Returns the product of matrices in half precision, with float32 sums, as float32."""
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    if left.dtype == torch.float16:  # CPUs have no fast product in float16
        return torch.mm(left.float(), right.float())
    return torch.mm(left, right).float()
