"""The target logit with margin and its derivative.

The target logit is ``s * (psi(m1 * theta + m2) - m3)``, with theta the angle between feature and center; every
other logit is ``s * cos(theta)``. ArcFace (1, 0.5, 0), CosFace (1, 0, 0.4), SphereFace (m, 0, 0).

``psi(a)`` is ``cos(a)`` for a <= pi. Beyond pi a cosine would increase again and reward a feature for turning away
from its center. There psi continues as ``(-1)^k cos(a) - 2k`` with ``k = floor(a / pi)``, which has a continuous
derivative and decreases monotonically (SphereFace, arXiv 1704.08063, equation 7).
"""

import math
from types import ModuleType

import numpy as np

from . import Array

# Names in the setting ``margin``. Both trainers have the first one, which this file computes.
MARGINS = ("combined", "adaface", "magface", "curricularface")

# Options of the first one.
COMBINED = {"m1": 1.0, "m2": 0.5, "m3": 0.0, "interclass_filtering_threshold": 0.0}

# Lower bound of sin(theta) in the denominator of the derivative. float32 does not resolve smaller values, because a
# cosine near 1 changes in steps of 2^-24, and their root is 2^-12. The bound keeps the derivative finite where feature
# and center coincide; there it is multiplied by (center - cos * feature), which is zero.
MIN_SINE = 2.0**-12


def target_logit(cosine: Array, margins: tuple[float, float, float], xp: ModuleType = np) -> tuple[Array, Array]:
    """Computes target logit / s and its derivative with respect to the cosine.

    Args:
        cosine: float64, any shape; values outside [-1, 1] are clipped.
        margins: (m1, m2, m3).
        xp: numpy or torch, whose arrays the cosines are.

    Returns:
        (value, derivative), both float64 of the same shape. The derivative is
        m1 * |sin(m1 * theta + m2)| / sin(theta) and always finite.
    """
    m1, m2, m3 = margins
    if m1 == 1 and m2 == 0:
        return cosine - m3, xp.ones_like(cosine)
    value, fall = psi(m1 * angle(cosine, xp) + m2, xp)
    return value - m3, m1 * fall / sine(cosine, xp)


def psi(angle: Array, xp: ModuleType = np) -> tuple[Array, Array]:
    """Returns psi of an angle of at least 0, float64, any shape, and minus its derivative, which is at least 0."""
    turns = xp.floor(angle / math.pi)
    return (1 - 2 * (turns % 2)) * xp.cos(angle) - 2 * turns, xp.abs(xp.sin(angle))


def angle(cosine: Array, xp: ModuleType = np) -> Array:
    """Returns the angle, 0..pi, of a cosine, float64, any shape; values outside [-1, 1] are clipped."""
    return xp.arccos(xp.clip(cosine, -1.0, 1.0))


def sine(cosine: Array, xp: ModuleType = np) -> Array:
    """Returns the sine of the angle of a cosine, at least MIN_SINE: minus the derivative of the cosine by the angle."""
    return xp.sqrt(xp.clip(1 - xp.square(cosine), MIN_SINE**2, 1.0))
