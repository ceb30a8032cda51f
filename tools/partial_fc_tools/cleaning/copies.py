"""Altered copies of some images, as the same photo is found twice in a crawl: cropped, brighter, compressed again.

How near they are to the originals says when two images are near-duplicates for the model at hand.
"""

import cv2
import numpy as np

from partial_fc.data.encoding import ImageOptions, encode
from partial_fc.data.transforms import decode_any_size

SAMPLED = 512
ZOOM, SHIFT = 1.03, 0.01  # around the middle; in widths and heights of the image
CONTRAST, BRIGHTER = 0.9, 20
QUALITY = 60  # of JPEG
ALTERATION = f"{ZOOM} {SHIFT} {CONTRAST} {BRIGHTER} {QUALITY}"


def altered(encoded: bytes) -> bytes:
    """Returns an altered copy of an encoded image. Raises ValueError if it cannot be decoded."""
    image = decode_any_size(encoded)
    height, width = image.shape[:2]
    left, top = (1 - ZOOM) / 2 + SHIFT, (1 - ZOOM) / 2 - SHIFT
    matrix = np.array([[ZOOM, 0, left * width], [0, ZOOM, top * height]])
    moved = cv2.warpAffine(image, matrix, (width, height), borderMode=cv2.BORDER_REPLICATE)
    brighter = cv2.convertScaleAbs(moved, alpha=CONTRAST, beta=BRIGHTER)
    return encode(brighter, ImageOptions(quality=QUALITY))


def sampled(length: int) -> np.ndarray:
    """Returns the positions (K,) int64 of the images that are copied: at most SAMPLED of ``length``, evenly spaced."""
    return np.linspace(0, length - 1, min(SAMPLED, length)).astype(np.int64)
