"""The interface of a face detector.

Shapes: H, W image size.
"""

from typing import NamedTuple, Protocol

import numpy as np

LANDMARKS = ("left_eye", "right_eye", "nose", "mouth_left", "mouth_right")  # left and right as seen


class Face(NamedTuple):
    """A face in an image; coordinates are (x, y) in pixels, and the center of the first pixel is (0, 0)."""

    score: float  # how certain the detector is, up to 1
    box: np.ndarray  # (4,) left, top, right, bottom
    landmarks: np.ndarray  # (5, 2), in the order of LANDMARKS, as in `ARCFACE`


class Detector(Protocol):
    """Finds faces. A user's detector is a class `package.module:name` that takes no arguments."""

    def detect(self, image: np.ndarray) -> list[Face]:
        """Returns the faces in an image (H, W, 3) uint8 RGB, in any order."""
        ...
