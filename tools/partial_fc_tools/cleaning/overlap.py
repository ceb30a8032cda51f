"""Rule: images and persons that are in a test set do not belong into the training set.

A near-duplicate of a test image, see duplicates.py, is removed. A class is the person of a test image if its center is
the nearest, with a cosine of at least ``person`` and the next center behind by ``sure`` or more; all of its images are
removed.

Shapes: N images, T test images, P persons.
"""

from typing import NamedTuple

import numpy as np

from .limits import Limits
from .nearest import Nearest


class Overlap(NamedTuple):
    """What a training set shares with test sets."""

    images: np.ndarray  # (D,) int64, near-duplicates of test images
    image_tests: np.ndarray  # (D,) int64, those test images
    classes: np.ndarray  # (P,) int64 ascending, persons of test images
    class_tests: np.ndarray  # (P,) int64, the nearest test image of each


def overlap(of_images: Nearest, of_tests: Nearest, limits: Limits) -> Overlap:
    """Finds the overlap, from the nearest test image of the N images and the nearest class of the T test images."""
    images = np.flatnonzero(of_images.best >= limits.duplicate)
    found = (of_tests.best >= limits.person) & (of_tests.best - of_tests.second >= limits.sure)
    tests = np.flatnonzero(found)
    tests = tests[np.argsort(-of_tests.best[tests], kind="stable")]
    classes, first = np.unique(of_tests.center[tests], return_index=True)
    return Overlap(images, of_images.center[images], classes, tests[first])
