"""Fewer points for a curve that looks the same."""

from __future__ import annotations

import numpy as np

BUCKETS = 100
MOST = 5 * BUCKETS  # points that are left


def thin(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Indices (at most MOST,), ascending, of the points of a curve x (N,), y (N,) that have to be drawn.

    The width is cut into buckets, and of each are kept the first point, the last, the lowest, the highest and one that
    is not finite, which is a gap: no extreme is lost, and the line enters and leaves a bucket where it did
    (the M4 aggregation, Jugel et al., VLDB 2014). `x` must be finite and ascend.
    """
    if len(x) <= MOST:
        return np.arange(len(x))
    kept: set[int] = set()
    for start, end in _buckets(x):
        kept.update(start + index for index in _telling(y[start:end]))
    return np.array(sorted(kept))


def means(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(mean x, mean y) of each bucket's finite points, at most BUCKETS of them: where a noisy curve goes."""
    finite = np.isfinite(y)
    x, y = x[finite], y[finite]
    parts = [slice(start, end) for start, end in _buckets(x) if start < end]
    return np.array([x[part].mean() for part in parts]), np.array([y[part].mean() for part in parts])


def _buckets(x: np.ndarray) -> list[tuple[int, int]]:
    """Where each hundredth of the width begins and ends."""
    if not len(x):
        return []
    span = x[-1] - x[0]
    place = (x - x[0]) / span if span else np.zeros(len(x))
    bucket = np.minimum((place * BUCKETS).astype(np.int64), BUCKETS - 1)
    bounds = np.searchsorted(bucket, np.arange(BUCKETS + 1)).tolist()
    return list(zip(bounds[:-1], bounds[1:]))


def _telling(y: np.ndarray) -> set[int]:
    finite = np.isfinite(y)
    there, gaps = np.flatnonzero(finite), np.flatnonzero(~finite)
    if not len(there):
        return set(gaps[:1].tolist())
    values = y[there]
    return {*there[[0, -1, values.argmin(), values.argmax()]].tolist(), *gaps[:1].tolist()}
