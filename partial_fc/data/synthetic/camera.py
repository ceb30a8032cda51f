"""Turns the drawn scene into an image: background, light, blur and noise.

Pixel arithmetic uses integers or single float32 operations, so that the bytes do not depend on the CPU.
"""

import cv2
import numpy as np

from .nuisance import Nuisance


def background(nuisance: Nuisance, size: int) -> np.ndarray:
    """Draws a blurred room: patches of color around the wall's color, then a few bars; (size, size, 3) uint8."""
    cells = nuisance.random.random((5, 5, 3)) * 160 - 80 + nuisance.wall
    small = np.clip(cells, 0, 255).astype(np.uint8)
    scene = cv2.resize(small, (size, size), interpolation=cv2.INTER_LINEAR_EXACT)
    corners = (nuisance.random.random((3, 4, 2)) * (1.6 * size) - 0.3 * size).astype(np.int32)
    for quad, color in zip(corners, nuisance.random.random((3, 3)) * 255):
        cv2.fillConvexPoly(scene, cv2.convexHull(quad), color.tolist())
    return scene


def light(scene: np.ndarray, nuisance: Nuisance) -> np.ndarray:
    """Applies gamma, the color of the light, its fall-off, and haze to an image (H, W, 3) uint8."""
    height, width = scene.shape[:2]
    clear = 1 - max(nuisance.veil, 0.0)
    gain = nuisance.gain * clear * np.array([1 + nuisance.warmth, 1 + nuisance.tint, 1 - nuisance.warmth])
    curve = 255 * (np.arange(256) / 255) ** np.exp2(nuisance.gamma)
    # The last digit of ** differs between CPUs, so the table is rounded to integers.
    table = np.rint(curve[:, None] * gain).astype(np.float32)
    picture: np.ndarray = cv2.LUT(scene, table[None]).reshape(height, 3 * width)
    across = np.repeat(np.linspace(-nuisance.slope_x, nuisance.slope_x, width), 3).astype(np.float32)
    down = np.linspace(1 - nuisance.slope_y, 1 + nuisance.slope_y, height).astype(np.float32)
    picture *= np.maximum(down[:, None] + across, np.float32(0.12))
    picture += np.float32(200 * (1 - clear))
    return np.clip(picture, 0, 255, out=picture).astype(np.uint8).reshape(height, width, 3)


def blur(picture: np.ndarray, passes: int) -> np.ndarray:
    """Applies a (1, 2, 1)/4 filter along both axes `passes` times, with repeated edges, to a uint8 image."""
    for _ in range(passes):
        wide = np.pad(picture, ((1, 1), (1, 1), (0, 0)), mode="edge").astype(np.uint16)
        rows = wide[:-2] + 2 * wide[1:-1] + wide[2:]
        picture = ((rows[:, :-2] + 2 * rows[:, 1:-1] + rows[:, 2:] + 8) >> 4).astype(np.uint8)
    return picture


def photograph(scene: np.ndarray, nuisance: Nuisance) -> np.ndarray:
    """Returns the scene (H, W, 3) uint8 as the camera records it."""
    picture = blur(light(scene, nuisance), int(nuisance.blur))
    grain = np.frombuffer(nuisance.random.bytes(2 * picture.size), dtype=np.uint8).reshape(2, *picture.shape)
    # The sum of two uniform draws resembles sensor noise. Its mean is 255, its standard deviation 104.
    noise = grain[0].astype(np.int16) + grain[1] - np.int16(255)
    noise *= np.int16(round(nuisance.noise * 64 / 104))
    noise >>= 6
    noise += picture
    return np.clip(noise, 0, 255, out=noise).astype(np.uint8)
