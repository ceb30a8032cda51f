"""A user's face detector: faces are red squares, whose landmarks are ArcFace's template."""

import cv2
import numpy as np

from partial_fc_tools.sets.alignment import ARCFACE, SIZE
from partial_fc_tools.sets.detection import Face


class RedSquares:
    """Used as red_squares:RedSquares; a square's score is its fraction of the image."""

    def detect(self, image):
        red = ((image[..., 0] > 128) & (image[..., 1] < 128)).astype(np.uint8)
        _, _, stats, _ = cv2.connectedComponentsWithStats(red)
        return [
            Face(width * height / red.size, np.array([x, y, x + width, y + height]), (x, y) + ARCFACE * (width / SIZE))
            for x, y, width, height, _ in stats[1:]  # the first one is the background
        ]


class Broken:
    """Fails on each image."""

    def detect(self, image):
        raise RuntimeError("no memory")
