"""SGD with momentum on rows in host memory.

Shapes: S rows, L rows of the whole momentum, E embedding, T rows of a block.
"""

from dataclasses import dataclass

import numpy as np

# Rows of a block: with their momentum, their gradient and one temporary they fit into the L2 cache of a core.
BLOCK_ROWS = 128


@dataclass(frozen=True)
class SGDParams:
    """The hyperparameters of an update, named as those of MXNet's ``sgd_mom_update``."""

    learning_rate: float
    momentum: float
    wd: float
    rescale_grad: float
    # "steps" is MXNet's, a momentum that sums steps; "gradients" that of torch.optim.SGD, a momentum that sums
    # gradients. The updates are the same as long as the learning rate is.
    momentum_convention: str = "steps"

    @property
    def gain(self) -> float:
        """Factor with which a gradient enters the momentum."""
        return 1.0 if self.momentum_convention == "gradients" else -self.learning_rate


def sgd_momentum(
    weight: np.ndarray,
    grad: np.ndarray,
    mom: np.ndarray,
    params: SGDParams,
    inverse_norm: np.ndarray | None = None,
    mom_rows: np.ndarray | None = None,
) -> None:
    """mom = momentum * mom - learning_rate * (rescale_grad * grad + wd * weight); weight += mom.

    With the convention "gradients": mom = momentum * mom + rescale_grad * grad + wd * weight;
    weight -= learning_rate * mom.

    Computes what MXNet's ``sgd_mom_update`` does, equally fast (docs/layer.md). It works block by block, so
    that the projection of the gradient and the copies of gathered momentum find their rows in the cache.

    Args:
        weight: (S, E) float32, updated in place.
        grad: (S, E) float32, overwritten.
        mom: (S, E) float32, updated in place; (L, E) with ``mom_rows``.
        params: the hyperparameters.
        inverse_norm: (S,) 1 / |weight|, for a loss of the unit rows weight / |weight|: projects ``grad`` onto the
            tangent space of each row, grad - (grad . weight) inverse_norm^2 weight, before the update.
        mom_rows: (S,) unique rows of ``mom`` that belong to the rows of ``weight``.
    """
    scratch, gathered = np.empty((2, min(BLOCK_ROWS, len(weight)), weight.shape[1]), weight.dtype)
    for start in range(0, len(weight), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        w, g = weight[block], grad[block]
        decay: np.float32 | np.ndarray = np.float32(params.gain * params.wd)
        if inverse_norm is not None:
            decay = decay - _radial_step(w, g, inverse_norm[block], params)
        if mom_rows is None:
            _update_block(w, g, mom[block], decay, params, scratch[: len(w)])
        else:
            m = np.take(mom, mom_rows[block], axis=0, out=gathered[: len(w)], mode="clip")
            _update_block(w, g, m, decay, params, scratch[: len(w)])
            mom[mom_rows[block]] = m


def _radial_step(w, g, inverse_norm, params: SGDParams) -> np.ndarray:
    """(T, 1) multiples of the rows w that the gradient adds to their momentum.

    Subtracted from the weight decay, which is also a multiple of the row, they project the gradient without a pass of
    their own.
    """
    along = np.einsum("te,te->t", g, w) * np.square(inverse_norm)
    return (np.float32(params.gain * params.rescale_grad) * along)[:, None]


def _update_block(w, g, m, decay, params: SGDParams, scratch: np.ndarray) -> None:
    """Updates weight w and momentum m, all (T, E), in place; overwrites the gradient g."""
    g *= np.float32(params.gain * params.rescale_grad)
    m *= np.float32(params.momentum)
    m += g
    m += np.multiply(w, decay, out=scratch)
    if params.momentum_convention == "gradients":
        m = np.multiply(m, np.float32(-params.learning_rate), out=scratch)
    w += m
