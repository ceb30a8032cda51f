"""The target logit with margin and its derivative.

The target logit is ``s * (psi(m1 * theta + m2) - m3)``, with theta the angle between feature and center; every
other logit is ``s * cos(theta)``. ArcFace (1, 0.5, 0), CosFace (1, 0, 0.4), SphereFace (m, 0, 0).

``psi(a)`` is ``cos(a)`` for a <= pi. Beyond pi a cosine would increase again and reward a feature for turning away
from its center. There psi continues as ``(-1)^k cos(a) - 2k`` with ``k = floor(a / pi)``, which has a continuous
derivative and decreases monotonically (SphereFace, arXiv 1704.08063, equation 7).
"""

from __future__ import annotations

import numpy as np

# Lower bound of sin(theta) in the denominator of the derivative. float32 does not resolve smaller values, because a
# cosine near 1 changes in steps of 2^-24, and their root is 2^-12. The bound keeps the derivative finite where feature
# and center coincide; there it is multiplied by (center - cos * feature), which is zero.
MIN_SINE = 2.0**-12


def target_logit(cosine: np.ndarray, margins: tuple[float, float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Computes target logit / s and its derivative with respect to the cosine.

    Args:
        cosine: any shape; values outside [-1, 1] are clipped.
        margins: (m1, m2, m3).

    Returns:
        (value, derivative), both float64 of the same shape. The derivative is
        m1 * |sin(m1 * theta + m2)| / sin(theta) and always finite.
    """
    m1, m2, m3 = margins
    cosine = np.asarray(cosine, dtype=np.float64)
    if m1 == 1 and m2 == 0:
        return cosine - m3, np.ones_like(cosine)
    angle = m1 * np.arccos(np.clip(cosine, -1.0, 1.0)) + m2
    turns = np.floor(angle / np.pi)
    value = (1 - 2 * (turns % 2)) * np.cos(angle) - 2 * turns - m3
    sine = np.sqrt(np.maximum(1 - np.square(cosine), MIN_SINE**2))
    return value, m1 * np.abs(np.sin(angle)) / sine
