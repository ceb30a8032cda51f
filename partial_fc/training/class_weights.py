"""The weights with which classes are drawn as negatives, for the setting ``sampling``."""

from typing import Any

import numpy as np

from partial_fc.checkpoint.arrays import open_array

SAMPLINGS = ("uniform", "frequency")


def sampling_weights(settings: Any, data: Any) -> np.ndarray | None:
    """Returns the weights of all classes, see WeightedSampler; None for uniform negatives.

    Args:
        settings: of a head. With ``sampling="frequency"``, a class has the weight of its number of items, at least 1.
        data: the head's training data.

    Returns:
        (C,) positive numbers, which the layer checks.

    Raises:
        OSError, ValueError: The file cannot be read, or the set does not have the labels of its items.
    """
    if settings.sampling == "uniform":
        return None
    if settings.sampling == "frequency":
        if settings.debug:  # dummy items
            return np.ones(settings.num_classes)
        return np.maximum(data.class_counts(settings.num_classes), 1)
    weights: np.ndarray = open_array(settings.sampling)
    return weights
