"""Limits of all decisions. They follow from how near images are in the set at hand, and from shares that users choose.

Shapes: N images, K images with altered copies, see copies.py.
"""

from typing import NamedTuple

import numpy as np

from .centers import Fit
from .nearest import Nearest
from .shares import Shares


class Limits(NamedTuple):
    """Cosines, and for ``sure`` and ``split`` differences of cosines; see the rules."""

    far: float
    near: float
    sure: float
    split: float
    duplicate: float
    person: float


def limits_of(fit: Fit, other: Nearest, copies: np.ndarray, shares: Shares) -> Limits:
    """Returns the limits, from the nearest other class of the N images and the cosines (K,) to altered copies."""
    typical = fit.typical & np.isfinite(fit.figures.own)
    if not typical.any():
        raise ValueError("no class has two images that are near each other: this model cannot clean this set")
    own = fit.figures.own[typical]
    lead = own - other.best[typical]
    return Limits(
        far=fit.far,
        near=float(np.quantile(own, shares.near)),
        sure=max(0.0, float(np.quantile(lead, shares.sure))),
        # Without a class of four images, or a copy of an image, there is no limit, and nothing is found.
        split=float(np.quantile(fit.halves, shares.split)) if len(fit.halves) else -np.inf,
        duplicate=float(np.quantile(copies, shares.copy)) if len(copies) else np.inf,
        person=float(np.quantile(own, shares.person)),
    )
