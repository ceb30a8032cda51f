"""SGD with momentum on rows that lie in the host's memory.

Shapes: S rows, E embedding.
"""

from __future__ import annotations

import numpy as np

# Rows worked on at once: these, their momentum and gradient and what is between fit into a core's own cache.
ROWS = 128


def sgd_momentum(
    weight: np.ndarray,
    grad: np.ndarray,
    mom: np.ndarray,
    learning_rate: float,
    momentum: float,
    wd: float,
    rescale_grad: float,
    inverse_norm: np.ndarray | None = None,
    mom_rows: np.ndarray | None = None,
) -> None:
    """mom = momentum * mom - learning_rate * (rescale_grad * grad + wd * weight); weight += mom.

    As MXNet's ``sgd_mom_update``, and as fast (benchmarks/operators.py), with the gradient through the normalisation on
    the same pass.

    Args:
        weight, mom: (S, E) float32, changed in place.
        grad: (S, E) float32, overwritten.
        inverse_norm: (S,) 1 / |weight| where the loss sees weight / |weight|, and ``grad`` lacks nothing but the part
            along the weight that this takes away: grad - (grad . weight) inverse_norm^2 weight is what is meant.
        mom_rows: (S,) where the momentum of these rows is the rows ``mom_rows`` of ``mom`` (L, E): they are taken and
            written back some at a time, while they are in the cache.
    """
    pulled, taken = np.empty((2, min(ROWS, len(weight)), weight.shape[1]), weight.dtype)
    for row in range(0, len(weight), ROWS):
        w, g = weight[row : row + ROWS], grad[row : row + ROWS]
        if mom_rows is None:
            m = mom[row : row + ROWS]
        else:
            m = np.take(mom, mom_rows[row : row + ROWS], axis=0, out=taken[: len(w)], mode="clip")
        towards_zero = np.full((len(w), 1), learning_rate * wd, np.float32)
        if inverse_norm is not None:
            along = np.einsum("te,te->t", g, w) * np.square(inverse_norm[row : row + ROWS])
            towards_zero[:, 0] -= np.float32(learning_rate * rescale_grad) * along
        g *= np.float32(learning_rate * rescale_grad)
        m *= np.float32(momentum)
        m -= g
        m -= np.multiply(w, towards_zero, out=pulled[: len(w)])
        w += m
        if mom_rows is not None:
            mom[mom_rows[row : row + ROWS]] = m
