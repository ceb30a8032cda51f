"""Encoded images that a tiny model tells apart: coarse patterns with noise."""

import cv2
import numpy as np


def photo_of(pattern, noise, random, side, ending=".jpg"):
    """Returns an encoded image of a pattern (n, n, 3) with normal noise, scaled to ``side`` pixels."""
    blocks = np.clip(pattern + random.normal(0, noise, pattern.shape), 0, 255).astype(np.uint8)
    return cv2.imencode(ending, cv2.resize(blocks, (side, side), interpolation=cv2.INTER_NEAREST))[1].tobytes()


def photos_of(patterns, count, noise, random, side, ending=".jpg"):
    """Returns ``count`` images of each pattern."""
    return [[photo_of(pattern, noise, random, side, ending) for _ in range(count)] for pattern in patterns]
