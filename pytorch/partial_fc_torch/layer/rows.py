"""Operations on the rows of centers and features.

Shapes: T rows, E embedding.
"""

from __future__ import annotations

import torch

# Added to squared norms, so that a zero row has a finite inverse norm; the same as in the MXNet trainer.
NORM_EPSILON = 1e-10


def inverse_norms(rows: torch.Tensor) -> torch.Tensor:
    """Returns 1 / Euclidean norm of every row (T, E): (T,)."""
    return torch.linalg.vector_norm(rows, dim=1).square_().add_(NORM_EPSILON).rsqrt_()


def dot_rows(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Returns the dot product of each row of left (T, E) with the same row of right (T, E): (T,)."""
    return torch.linalg.vecdot(left, right)


def remove_component(gradient: torch.Tensor, rows: torch.Tensor, inverse_norm: torch.Tensor) -> None:
    """gradient -= (gradient . w) w for each row (T, E), in place, with w = inverse_norm * row."""
    along = dot_rows(gradient, rows) * inverse_norm.square()
    gradient.sub_(rows * along[:, None])
