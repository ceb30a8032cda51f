"""The three matrix products of a tile, with float32 rows; on a GPU also in TF32.

The labels' logits and their part of the gradients are computed from float32 rows elsewhere, see step.py.

Error bounds in TF32, which has the exponents of float32 and 10 bits of its mantissa. Hardware may truncate, so the
roundoff is u = 2^-10. A GPU rounds only the elements of both operands of a product. As half_products.py derives, a
logit is off by at most d = s (2u + u^2), the loss by d, and a gradient by at most s (exp(2d) (1 + u)^2 - 1).

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
        operand: (G, E), the operand of the products, see Products.operand.
    """

    def __init__(self, features: torch.Tensor, products: Products):
        self.inverse_norm = inverse_norms(features)
        self.unit = features * self.inverse_norm[:, None]
        self.operand = products.operand(self.unit)


class Operands(NamedTuple):
    """The operands of the gradient products of a tile."""

    d_logits: torch.Tensor  # (G, T)
    centers: torch.Tensor  # (T, E)
    factor: torch.Tensor | float = 1.0  # of their products with ``d_logits``


class Products:
    """Products of centers W with unit rows x of the features; the centers' norms are divided out of the results.

    Args:
        scale: s.
        dtype: one of TYPES. "tf32" uses TF32 on a GPU; for "float32", torch.backends.cuda.matmul decides, which is
            float32 by default.
    """

    def __init__(self, scale: float, dtype: str):
        self.scale, self.dtype = scale, dtype

    @property
    def unit_type(self) -> torch.dtype:
        """The type of unit rows as operands of `mm`."""
        return torch.float32

    def mm(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Returns the product of two matrices in the type of the operands, as float32."""
        with _in_tf32(self.dtype == "tf32"):
            return torch.mm(left, right)

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
        return self.mm(features.operand, weight.t()).mul_(inverse_norm)

    def prepare(self, d_logits: torch.Tensor, weight: torch.Tensor, inverse_norm: torch.Tensor) -> Operands:
        """Returns the operands of both gradient products of a tile.

        Args:
            d_logits: (G, T) gradient with respect to s times the cosines; overwritten.
            weight, inverse_norm: see `logits`.
        """
        return Operands(d_logits.mul_(inverse_norm), weight)

    def add_feature_gradient(self, operands: Operands, d_unit: torch.Tensor) -> None:
        """Adds the gradient with respect to the unit rows of the features, without s, to d_unit (G, E) float32."""
        with _in_tf32(self.dtype == "tf32"):
            d_unit.addmm_(operands.d_logits, operands.centers)

    def center_gradient(self, operands: Operands, features: Features, inverse_norm: torch.Tensor) -> torch.Tensor:
        """Returns the gradient with respect to the centers (T, E) float32, see TileGradient.raw."""
        return self.mm(operands.d_logits.t(), features.operand)


def products_of(dtype: torch.dtype | str, scale: float) -> Products:
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
        return Products(scale, name)
    from .half_products import HalfProducts

    return HalfProducts(scale, name)


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
