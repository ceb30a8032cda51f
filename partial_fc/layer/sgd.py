"""SGD with momentum for rows in host memory.

Shapes: S rows, L rows of the whole momentum, E embedding, T rows of a block.
"""

from dataclasses import dataclass

import numpy as np

# Rows per block. A block fits into the L2 cache of a core, with its momentum, its gradient and one temporary array.
BLOCK_ROWS = 128


@dataclass(frozen=True)
class SGDParams:
    """The hyperparameters of an update, with the names of MXNet's ``sgd_mom_update``."""

    learning_rate: float
    momentum: float
    wd: float
    rescale_grad: float
    # In "steps", the convention of MXNet, the momentum accumulates steps; in "gradients", the convention of
    # torch.optim.SGD, it accumulates gradients. The updates are the same as long as the learning rate is constant.
    momentum_convention: str = "steps"

    @property
    def gain(self) -> float:
        """Factor of a gradient that is added to the momentum."""
        return 1.0 if self.momentum_convention == "gradients" else -self.learning_rate


def sgd_momentum(
    weight: np.ndarray,
    grad: np.ndarray,
    mom: np.ndarray,
    params: SGDParams,
    inverse_norm: np.ndarray | None = None,
    mom_rows: np.ndarray | None = None,
) -> None:
    """Computes mom = momentum * mom - learning_rate * (rescale_grad * grad + wd * weight); weight += mom.

    With the convention "gradients", it computes mom = momentum * mom + rescale_grad * grad + wd * weight;
    weight -= learning_rate * mom.

    Equivalent to MXNet's ``sgd_mom_update`` and as fast (docs/layer.md). It works block by block, so that the rows are
    still in the cache for the projection of the gradient and for the copies of gathered momentum.

    Args:
        weight: (S, E) float32, updated in place.
        grad: (S, E) float32, overwritten.
        mom: (S, E) float32, updated in place; (L, E) with ``mom_rows``.
        params: the hyperparameters.
        inverse_norm: (S,) 1 / |weight|, for a loss of the unit rows weight / |weight|. If given, ``grad`` is projected
            onto the tangent space of each row before the update: grad - (grad . weight) inverse_norm^2 weight.
        mom_rows: (S,) unique rows of ``mom`` that correspond to the rows of ``weight``.
    """
    scratch, gathered = np.empty((2, min(BLOCK_ROWS, len(weight)), weight.shape[1]), weight.dtype)
    for start in range(0, len(weight), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        w, g = weight[block], grad[block]
        decay: np.float32 | np.ndarray = np.float32(params.gain * params.wd)
        if inverse_norm is not None:
            # The weight decay and the gradient's radial part are multiples of the rows. Their difference projects the
            # gradient without another pass over the data.
            radial = np.einsum("te,te->t", g, w) * np.square(inverse_norm[block])
            decay = decay - (np.float32(params.gain * params.rescale_grad) * radial)[:, None]
        if mom_rows is None:
            _update_block(w, g, mom[block], decay, params, scratch[: len(w)])
        else:
            m = np.take(mom, mom_rows[block], axis=0, out=gathered[: len(w)], mode="clip")
            _update_block(w, g, m, decay, params, scratch[: len(w)])
            mom[mom_rows[block]] = m


def _update_block(w, g, m, decay, params: SGDParams, scratch: np.ndarray) -> None:
    """Updates weight w and momentum m, all (T, E), in place; overwrites the gradient g."""
    g *= np.float32(params.gain * params.rescale_grad)
    m *= np.float32(params.momentum)
    m += g
    m += np.multiply(w, decay, out=scratch)
    if params.momentum_convention == "gradients":
        m = np.multiply(m, np.float32(-params.learning_rate), out=scratch)
    w += m
