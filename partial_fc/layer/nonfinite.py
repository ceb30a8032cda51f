"""The error of a step with an infinite or NaN loss, which names the rank that caused it.

Shapes: G global batch, R ranks, E embedding.
"""

import numpy as np


def nonfinite_loss(
    loss: float, num_update: int, features: np.ndarray, statistics: np.ndarray, fp16: bool = False
) -> FloatingPointError:
    """Returns the error of a step. The message names the ranks that caused it and says what to change.

    Args:
        loss: loss of the step.
        num_update: number of the step.
        features: (G, E) float32, the gathered features in rank order.
        statistics: (R, 3, G) float32, the gathered softmax statistics.
        fp16: whether the backbone is in float16, which may be the cause.
    """
    return FloatingPointError(
        f"the loss is {loss} at update {num_update} ({_source(features, statistics)}): lower the learning rate, "
        "warm it up, clip the gradients, or check the images" + (", or set fp16=False" if fp16 else "")
    )


def _source(features: np.ndarray, statistics: np.ndarray) -> str:
    """Returns the cause, such as "non-finite features on rank 1". Centers are named only if all features are finite."""
    kind, invalid = "features", ~np.isfinite(features)
    if not invalid.any():
        # A rank without centers has infinite statistics, so only NaN is an error.
        kind, invalid = "centers", np.isnan(statistics)
    ranks = np.flatnonzero(invalid.reshape(len(statistics), -1).any(axis=1)).tolist()
    if not ranks:
        return "all features and centers are finite"
    return f"non-finite {kind} on rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
