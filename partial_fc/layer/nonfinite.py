"""Which rank made the loss of a step infinite or NaN.

Shapes: G global batch, R ranks, E embedding.
"""

from __future__ import annotations

import numpy as np


def nonfinite_source(features: np.ndarray, statistics: np.ndarray, ranks: int) -> str:
    """Describes where the non-finite values behind a non-finite loss come from.

    Args:
        features: (G, E) float32, the gathered features in rank order.
        statistics: float32, the gathered softmax statistics in rank order, in any shape.
        ranks: R.

    Returns:
        Such as "non-finite features on rank 1". Centers are named only if all features are finite.
    """
    kind, invalid = "features", ~np.isfinite(features)
    if not invalid.any():
        # Statistics of a rank without centers are infinite, so only a NaN is an error.
        kind, invalid = "centers", np.isnan(statistics)
    found = np.flatnonzero(invalid.reshape(ranks, -1).any(axis=1)).tolist()
    if not found:
        return "all features and centers are finite"
    return f"non-finite {kind} on rank{'s' if len(found) > 1 else ''} {', '.join(map(str, found))}"
