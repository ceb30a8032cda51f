"""Altered copies of some images: a little larger and compressed again, as the same photo is found twice in a crawl.

How near they are to the originals says when two images are near-duplicates for the model at hand.
"""

import cv2
import numpy as np

from partial_fc.data.encoding import decode_bgr

SAMPLED = 512
ZOOM = 1.03
QUALITY = 60  # of JPEG


def altered(encoded: bytes) -> bytes:
    """Returns an altered copy of an encoded image. Raises ValueError if it cannot be decoded."""
    image = decode_bgr(encoded)
    height, width = image.shape[:2]
    matrix = np.array([[ZOOM, 0, (1 - ZOOM) * width / 2], [0, ZOOM, (1 - ZOOM) * height / 2]])
    zoomed = cv2.warpAffine(image, matrix, (width, height), borderMode=cv2.BORDER_REPLICATE)
    return cv2.imencode(".jpg", zoomed, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes()


def sampled(length: int) -> np.ndarray:
    """Returns the positions (K,) int64 of the images that are copied: at most SAMPLED of ``length``, evenly spaced."""
    return np.linspace(0, length - 1, min(SAMPLED, length)).astype(np.int64)
