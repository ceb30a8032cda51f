"""The target logit with margin and its derivative.

The target logit is ``s * (psi(m1 * theta + m2) - m3)``, where theta is the angle between feature and center. All other
logits are ``s * cos(theta)``. (m1, m2, m3) is (1, 0.5, 0) for ArcFace, (1, 0, 0.4) for CosFace, (m, 0, 0) for
SphereFace.

``psi(a)`` is ``cos(a)`` for a <= pi. Beyond pi the cosine increases again, which would reward a feature for turning
away from its center. There psi is ``(-1)^k cos(a) - 2k`` with ``k = floor(a / pi)``, which decreases monotonically and
has a continuous derivative (SphereFace, arXiv 1704.08063, equation 7).
"""

import math
from types import ModuleType

import numpy as np

from . import Array

# Values of the setting ``margin``. Both trainers have "combined", which this file computes.
MARGINS = ("combined", "adaface", "magface", "curricularface", "inter_topk")

# Default options of "combined".
COMBINED = {"m1": 1.0, "m2": 0.5, "m3": 0.0, "interclass_filtering_threshold": 0.0}

# Lower bound of sin(theta), which the derivative is divided by. float32 does not resolve smaller sines: cosines near 1
# have a spacing of 2^-24, and its square root is 2^-12. The bound keeps the derivative finite where feature and center
# coincide; the derivative is multiplied by (center - cos * feature), which is zero there.
MIN_SINE = 2.0**-12


def target_logit(cosine: Array, margins: tuple[float, float, float], xp: ModuleType = np) -> tuple[Array, Array]:
    """Computes target logit / s and its derivative with respect to the cosine.

    Args:
        cosine: float64, any shape; values outside [-1, 1] are clipped.
        margins: (m1, m2, m3).
        xp: numpy or torch, the module of the array.

    Returns:
        (value, derivative), both float64 of the same shape. The derivative is
        m1 * |sin(m1 * theta + m2)| / sin(theta) and always finite.
    """
    m1, m2, m3 = margins
    if m1 == 1 and m2 == 0:
        return cosine - m3, xp.ones_like(cosine)
    value, minus_derivative = psi(m1 * angle(cosine, xp) + m2, xp)
    return value - m3, m1 * minus_derivative / sine(cosine, xp)


def psi(angle: Array, xp: ModuleType = np) -> tuple[Array, Array]:
    """Returns psi and minus its derivative, both float64, for angles >= 0 of any shape. The latter is >= 0."""
    turns = xp.floor(angle / math.pi)
    return (1 - 2 * (turns % 2)) * xp.cos(angle) - 2 * turns, xp.abs(xp.sin(angle))


def angle(cosine: Array, xp: ModuleType = np) -> Array:
    """Returns the angles, 0..pi, of float64 cosines of any shape; values outside [-1, 1] are clipped."""
    return xp.arccos(xp.clip(cosine, -1.0, 1.0))


def sine(cosine: Array, xp: ModuleType = np) -> Array:
    """Returns sin(theta), at least MIN_SINE, for cosines of any shape. It is minus the cosine's derivative by theta."""
    return xp.sqrt(xp.clip(1 - xp.square(cosine), MIN_SINE**2, 1.0))
