"""Decoding and augmenting one face image.

Shapes: H, W image size; images are (H, W, 3) uint8 RGB.
"""

from __future__ import annotations

import cv2
import numpy as np

JPEG_START, JPEG_END = b"\xff\xd8", b"\xff\xd9"
ERASED = 128  # grey: next to zero after the networks' (x - 127.5) / 128
LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601, as JPEG itself
DRAWS = 7  # random numbers `augment` takes for an image


def decode_rgb(encoded: bytes, out: np.ndarray) -> None:
    """Decode a JPEG or PNG into `out` (H, W, 3) uint8 RGB. Raises ValueError if it is damaged or of another size."""
    # OpenCV fills the missing rows of a cut JPEG with grey, in some versions without a word.
    if encoded.startswith(JPEG_START) and encoded.rfind(JPEG_END) < 0:
        raise ValueError(f"is a JPEG cut short after {len(encoded)} bytes")
    image = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR) if encoded else None
    if image is None:
        raise ValueError(f"cannot be decoded ({len(encoded)} bytes)")
    if image.shape != out.shape:
        raise ValueError(f"has {image.shape[0]}x{image.shape[1]} pixels instead of {out.shape[0]}x{out.shape[1]}")
    cv2.cvtColor(image, cv2.COLOR_BGR2RGB, dst=out)


def augment(image: np.ndarray, draws: np.ndarray, rand_mirror: bool, cutoff: int, color_jittering: float) -> None:
    """Change `image` (H, W, 3) in place as `draws` (DRAWS,) in [0, 1) say.

    `rand_mirror`: every second image left-right; `color_jittering`: brightness, contrast and saturation each times
    1 - c .. 1 + c; `cutoff`: side of a square that is erased from every second image, clipped at the border.
    """
    if rand_mirror and draws[0] < 0.5:
        image[:] = image[:, ::-1].copy()
    if color_jittering > 0:
        jitter_color(image, 1 + color_jittering * (2 * draws[1:4] - 1))
    if cutoff > 0 and draws[4] < 0.5:
        erase_square(image, cutoff, draws[5], draws[6])


def jitter_color(image: np.ndarray, factors: np.ndarray) -> None:
    """Scale brightness, contrast (about the mean grey) and saturation (about each pixel's grey) by `factors` (3,)."""
    brightness, contrast, saturation = (np.float32(factor) for factor in factors)
    pixels = image.astype(np.float32) * brightness
    mean_grey = (pixels @ LUMA).mean()
    pixels = mean_grey + (pixels - mean_grey) * contrast
    grey = (pixels @ LUMA)[..., None]
    pixels = grey + (pixels - grey) * saturation
    image[:] = np.clip(np.rint(pixels), 0, 255)


def erase_square(image: np.ndarray, side: int, row: float, column: float) -> None:
    """Grey out a square of `side` pixels whose centre is at the fractions `row`, `column` of the image."""
    top = int(row * image.shape[0]) - side // 2
    left = int(column * image.shape[1]) - side // 2
    image[max(top, 0) : top + side, max(left, 0) : left + side] = ERASED
