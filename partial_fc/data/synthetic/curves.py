"""Smooth outlines for the synthetic faces.

Everything is drawn as a filled polygon, even lines: OpenCV's line widths are whole pixels, which would hide most of the
differences between two faces.

Shapes: P control points, N points of an outline.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np

SAMPLES = 5  # points per span between two control points: spans are at most some 15 pixels long


@cache
def _basis(count: int, closed: bool) -> np.ndarray:
    """Catmull-Rom weights (N, P): outline = weights @ control points."""
    spans = count if closed else count - 1
    weights = np.zeros((spans * SAMPLES + (0 if closed else 1), count))
    for row in range(len(weights)):
        span, t = divmod(row / SAMPLES, 1.0)
        cubic = (
            (-t + 2 * t**2 - t**3) / 2,
            (2 - 5 * t**2 + 3 * t**3) / 2,
            (t + 4 * t**2 - 3 * t**3) / 2,
            (-(t**2) + t**3) / 2,
        )
        for offset, weight in enumerate(cubic, start=-1):
            at = int(span) + offset
            weights[row, at % count if closed else min(max(at, 0), count - 1)] += weight
    return weights


@cache
def _circle(count: int) -> np.ndarray:
    angle = np.arange(count) * (2 * np.pi / count)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def closed_curve(points: Sequence[Sequence[float]]) -> np.ndarray:
    """Returns a smooth closed outline (N, 2) through the control points (P, 2)."""
    return _basis(len(points), True) @ np.asarray(points, dtype=np.float64)


def open_curve(points: Sequence[Sequence[float]]) -> np.ndarray:
    """Returns a smooth open line (N, 2) through the control points (P, 2)."""
    return _basis(len(points), False) @ np.asarray(points, dtype=np.float64)


def oval(x: float, y: float, half_width: float, half_height: float, count: int = 16) -> np.ndarray:
    """Returns an ellipse around (x, y) as a polygon (count, 2)."""
    return _circle(count) * (half_width, half_height) + (x, y)


def ribbon(line: np.ndarray, width: float, taper: float = 0.7) -> np.ndarray:
    """Returns a line (N, 2) with a width as a polygon (2N, 2); its ends are narrower by the fraction `taper`."""
    along = np.empty_like(line)
    along[1:-1] = line[2:] - line[:-2]
    along[0] = line[1] - line[0]
    along[-1] = line[-1] - line[-2]
    half = _pen(len(line), taper) * (width / 2) / (np.sqrt(along[:, 0] ** 2 + along[:, 1] ** 2) + 1e-9)
    across = along[:, ::-1] * (-1.0, 1.0) * half[:, None]
    return np.concatenate([line + across, (line - across)[::-1]])


@cache
def _pen(count: int, taper: float) -> np.ndarray:
    """Returns the relative width (N,) along a line."""
    return 1 - taper * np.linspace(-1.0, 1.0, count) ** 2


def mirrored(points: np.ndarray) -> np.ndarray:
    """Mirrors an outline to the other side of the face."""
    return points * (-1.0, 1.0)
