"""Rule: an image that is far from its class and near another one has a wrong label.

It is far if its cosine to the mean of the other typical images of its class is below ``far``, and near another class if
its cosine to the nearest other center is at least ``near``, and higher. It belongs to that class if the next class is
behind by ``sure`` or more; otherwise its class is not known. An image that is far from all classes is left alone: on
the glyphs four of five of those are hard images with the right label.

Shapes: N images, W images with wrong labels.
"""

from typing import NamedTuple

import numpy as np

from .limits import Limits
from .nearest import Nearest


class WrongLabels(NamedTuple):
    """The W images, (W,) int64 ascending, and their true class, -1 if it is not known."""

    images: np.ndarray
    classes: np.ndarray


def wrong_labels(own: np.ndarray, other: Nearest, limits: Limits) -> WrongLabels:
    """Finds images with wrong labels, by their cosines to the own class (N,), NaN where it has no other images."""
    wrong = (own < limits.far) & (other.best >= limits.near) & (other.best > own)
    images = np.flatnonzero(wrong)
    is_sure = other.best[images] - other.second[images] >= limits.sure
    return WrongLabels(images, np.where(is_sure, other.center[images], -1))
