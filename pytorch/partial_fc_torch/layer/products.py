"""The three matrix products of a tile: of float32 rows, on a GPU also in TF32, or of unit rows in half precision.

Half precision rounds the elements of both unit rows, and the probabilities. Sums are float32. The G targets do not take
part: their logits and gradients are computed from the float32 rows.

With the unit roundoff u (2^-8 for bfloat16, 2^-11 for float16) and |x| = |w| = 1, the rounded elements change a dot
product by at most (2u + u^2) sum |x_i w_i| <= 2u + u^2 (Cauchy-Schwarz), so a logit by at most s (2u + u^2). On a CPU
PyTorch also rounds a product to bfloat16, which adds s u (1 + u)^2. Each logit of a row off by at most d, the loss is
off by at most d, and the probabilities of the row together by at most exp(2d) - 1. In a product with them the
probabilities, a unit row and, on a CPU, the result are rounded, so that the gradient of a row's loss by the unit row of
its feature is off by at most s (exp(2d) (1 + u)^3 - 1) in the Euclidean norm; so are, added up over the centers, its
gradients by their unit rows. The roundings of float32 sums and float16 numbers below 2^-14 are left out, and so are
negatives that a margin changes.

TF32 has the exponents of float32 and 10 bits of its mantissa. The roundoff is u = 2^-10, as hardware may cut the other
bits off. A GPU rounds the elements of both operands of a product in this way, and nothing else, so that a logit is off
by at most d = s (2u + u^2), and the loss by d. In the gradients the targets are part of the product: their p - 1, times
the slope m of the margin, and their rows are rounded as well, so that the bound is s (exp(2d) (1 + u)^2 - 1) for the
probabilities and m s (2u + u^2) more for the targets; m is 1 for CosFace.

Shapes: G global batch, T centers of a tile, E embedding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .rows import inverse_norms
from .tiles import Tile

TYPES = ("float32", "tf32", "bfloat16", "float16")


class Features:
    """The features of a batch as both passes need them.

    Args:
        features: (G, E) floating point.

    Attributes:
        inverse_norm: (G,) 1 / |X|.
        unit: (G, E) unit rows x.
        operand: (G, E), ``unit`` as operand of the products, see their `operand`.
    """

    def __init__(self, features: torch.Tensor, products: Float32Products | HalfProducts):
        self.inverse_norm = inverse_norms(features)
        self.unit = features * self.inverse_norm[:, None]
        self.operand = products.operand(self.unit)


class Float32Products:
    """Products of a tile with centers W and unit rows x of the features; norms are divided out of the results.

    Args:
        scale: s.
        tf32: in TF32 on a GPU; otherwise as torch.backends.cuda.matmul says, which is float32 by default.
    """

    def __init__(self, scale: float, tf32: bool = False):
        self.scale, self.tf32 = scale, tf32

    def operand(self, unit: torch.Tensor) -> torch.Tensor:
        """Returns the operand of the other methods for the unit rows (G, E) float32 of the features."""
        return unit * self.scale

    def logits(self, features: Features, weight: torch.Tensor, inverse_norm: torch.Tensor) -> torch.Tensor:
        """Returns the logits s x.w, (G, T) float32.

        Args:
            features: of the batch.
            weight: (T, E) float32 centers.
            inverse_norm: (T,) 1 / |W|.
        """
        with _in_tf32(self.tf32):
            return torch.mm(features.operand, weight.t()).mul_(inverse_norm)

    def gradients(self, tile: Tile, features: Features, d_targets: torch.Tensor, d_unit: torch.Tensor) -> torch.Tensor:
        """Adds the gradient by the unit rows of the features, divided by s, to ``d_unit``; returns that by the centers.

        Args:
            tile: its logits are the gradient by s times the cosines, apart from the targets, whose elements are
                ignored; overwritten.
            features: of the batch.
            d_targets: (G,) gradient by the targets' cosines times s, also by those in other tiles.
            d_unit: (G, E) float32.

        Returns:
            (T, E) float32, but for a component along each center, see TileGradient.
        """
        tile.targets.scatter(tile.logits, d_targets)
        d_logits = tile.logits.mul_(tile.inverse_norm)
        with _in_tf32(self.tf32):
            d_unit.addmm_(d_logits, tile.weight)
            return torch.mm(d_logits.t(), features.operand)


class HalfProducts:
    """As Float32Products, of unit rows in half precision.

    Args:
        scale: s.
        dtype: bfloat16 or float16.
    """

    def __init__(self, scale: float, dtype: torch.dtype):
        self.scale = scale
        self.dtype = dtype
        # float16 has no numbers between 0 and 2^-24, where most probabilities of many classes are, and none above
        # 65504. With this factor a probability, at most 1, may have a slope of a margin up to 15.
        self._factor = 2.0**12 if dtype == torch.float16 else 1.0

    def operand(self, unit: torch.Tensor) -> torch.Tensor:
        """As Float32Products."""
        return unit.to(self.dtype)

    def logits(self, features: Features, weight: torch.Tensor, inverse_norm: torch.Tensor) -> torch.Tensor:
        """As Float32Products."""
        return _float32_product(features.operand, self._unit_centers(weight, inverse_norm).t()).mul_(self.scale)

    def gradients(self, tile: Tile, features: Features, d_targets: torch.Tensor, d_unit: torch.Tensor) -> torch.Tensor:
        """As Float32Products."""
        tile.targets.scatter(tile.logits, torch.zeros_like(d_targets))
        d_half = tile.logits.mul_(self._factor).to(self.dtype)
        unit_centers = self._unit_centers(tile.weight, tile.inverse_norm)
        d_unit.add_(_float32_product(d_half, unit_centers), alpha=1 / self._factor)
        gradient = _float32_product(d_half.t(), features.operand)
        gradient.mul_((self.scale / self._factor * tile.inverse_norm)[:, None])
        # The targets, which have most of the gradient, from the float32 rows.
        inside, columns = tile.targets.inside, tile.targets.columns
        factor = torch.where(inside, d_targets * tile.inverse_norm[columns], 0.0)[:, None]
        d_unit.addcmul_(tile.weight[columns], factor)
        return gradient.index_add_(0, columns, features.unit * factor, alpha=self.scale)

    def _unit_centers(self, weight, inverse_norm):
        # float16 has no room for rows of any norm. For bfloat16 the norms could be divided out of the products instead,
        # which takes as long.
        return torch.mul(weight, inverse_norm[:, None]).to(self.dtype)


def products_of(dtype: torch.dtype | str, scale: float) -> Float32Products | HalfProducts:
    """Returns the products in a type.

    Args:
        dtype: one of TYPES, or a dtype of PyTorch with such a name.
        scale: s.

    Raises:
        ValueError: another type.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in TYPES:
        raise ValueError(f"layer_dtype is {dtype}, expected auto or one of {', '.join(TYPES)}")
    if name in ("float32", "tf32"):
        return Float32Products(scale, name == "tf32")
    return HalfProducts(scale, getattr(torch, name))


@contextmanager
def _in_tf32(wanted: bool) -> Iterator[None]:
    """A context in which float32 products on GPUs are in TF32, if wanted; the backbone keeps what the user has set."""
    matmul = torch.backends.cuda.matmul
    if not wanted or matmul.fp32_precision == "tf32":
        yield
        return
    # Of both settings of PyTorch this one also sets the other: products fail where the two differ.
    matmul.allow_tf32 = True
    try:
        yield
    finally:
        matmul.allow_tf32 = False


def _float32_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The product of matrices in half precision, with float32 sums: float32."""
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    if left.dtype == torch.float16:  # CPUs have no fast product
        return torch.mm(left.float(), right.float())
    return torch.mm(left, right).float()
