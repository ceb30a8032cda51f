"""The margin on the target logit: its value and its derivative.

Target logit: ``s * (psi(m1 * theta + m2) - m3)`` with theta the angle between feature and center; every
other logit is ``s * cos(theta)``. ArcFace (1, 0.5, 0), CosFace (1, 0, 0.4), SphereFace (m, 0, 0).

``psi(a)`` is ``cos(a)`` up to a = pi. Past pi a cosine would rise again and reward a feature for turning
away from its center, so psi goes on as ``(-1)^k cos(a) - 2k`` with ``k = floor(a / pi)``: continuous, with a
continuous derivative, and falling all the way (SphereFace, arXiv 1704.08063, equation 7).
"""

from __future__ import annotations

import numpy as np

# sin(theta) below this is not resolved in float32: a cosine next to 1 moves in steps of 2^-24, whose
# root is 2^-12. Dividing by no less keeps the derivative finite where feature and center coincide;
# there it multiplies (center - cos * feature), which is zero.
MIN_SINE = 2.0**-12


def target_logit(cosine: np.ndarray, margins: tuple[float, float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Target logit divided by s, and its derivative by the cosine.

    Args:
        cosine: any shape; values a rounding beyond -1 and 1 are taken as -1 and 1.
        margins: (m1, m2, m3).

    Returns:
        Two arrays of that shape, float64. The derivative is m1 * |sin(m1 * theta + m2)| / sin(theta), finite.
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
