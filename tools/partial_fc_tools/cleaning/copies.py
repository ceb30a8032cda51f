"""Altered copies of some images, like the copies of a photo that a crawl finds: cropped, brighter, compressed again.

Their cosines to the originals determine the limit for near-duplicates of the model at hand.
"""

import cv2
import numpy as np

from partial_fc.data.encoding import ImageOptions, encode
from partial_fc.data.transforms import decode_any_size

SAMPLED = 512
ZOOM, SHIFT = 1.03, 0.01  # around the center; fraction of the width and the height
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
    """Returns the positions (K,) int64 of at most SAMPLED of ``length`` images, evenly spaced."""
    return np.linspace(0, length - 1, min(SAMPLED, length)).astype(np.int64)
