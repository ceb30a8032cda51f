"""Decodes and augments one face image.

Shapes: H, W image size; images are (H, W, 3) uint8 RGB.
"""

import re
import struct
from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np

from partial_fc.utils.text import plural

JPEG_START, JPEG_END = b"\xff\xd8", b"\xff\xd9"
# The frame of a JPEG (ITU-R T.81, B.2.2): marker, length, 8 bits, height, width, channels. In the pixels no 0xFF is
# followed by such a marker.
JPEG_FRAME = re.compile(
    rb"\xff[\xc0-\xc3\xc5-\xc7\xc9-\xcb\xcd-\xcf]\x00[\x0b\x11\x14]\x08(....[\x01\x03\x04])", re.DOTALL
)
COLOR_FRAME = b"\xff\xc0\x00\x11\x08"  # of a baseline JPEG of three channels: a search is faster than the pattern
PNG_START = b"\x89PNG"
PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}  # by the color type of the header; a palette contains RGB
ERASED = 128  # gray: close to zero after the networks' (x - 127.5) / 128
LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601, as in JPEG
DRAWS = 9  # random numbers that `augment` uses for an image


class Augmentation(NamedTuple):
    """Random changes of training images."""

    rand_mirror: bool = False  # mirror every second image left-right
    cutout: int = 0  # side in pixels of a square that is erased from every second image, clipped at the border
    color_jittering: float = 0  # c; brightness, contrast and saturation are each scaled by 1 - c .. 1 + c.
    jpeg_compression: int = 0  # lowest quality; every second image is compressed with a quality up to 100. 0 for none.

    def check(self) -> None:
        """Raises ValueError if a number is out of range."""
        if self.cutout < 0:
            raise ValueError(f"cutout must be at least 0 pixels, got {self.cutout}")
        if not 0 <= self.color_jittering <= 1:
            raise ValueError(f"color_jittering must be from 0 to 1, got {self.color_jittering}")
        if not 0 <= self.jpeg_compression <= 100:
            raise ValueError(f"jpeg_compression must be a quality from 1 to 100, or 0, got {self.jpeg_compression}")


def decode_rgb(encoded: bytes, image_size: tuple) -> np.ndarray:
    """Decodes a JPEG, PNG or WebP to (H, W, 3) uint8 RGB. Raises ValueError if it is damaged or has another size."""
    image = decode_any_size(encoded)
    check_size(image, image_size)
    return image


def check_size(image: np.ndarray, image_size: tuple) -> None:
    """Raises ValueError if the image (H, W, 3) has another size."""
    if image.shape[:2] != tuple(image_size):
        raise ValueError(f"has {image.shape[0]}x{image.shape[1]} pixels instead of {image_size[0]}x{image_size[1]}")


def decode_color(encoded: bytes, image_size: tuple) -> np.ndarray:
    """As decode_rgb, but refuses a JPEG or PNG that is gray or has alpha, too."""
    channels = color_channels(encoded)
    if channels is not None and channels != 3:
        raise ValueError(f"has {plural(channels, 'channel')} instead of 3")
    return decode_rgb(encoded, image_size)


def decode_any_size(encoded: bytes) -> np.ndarray:
    """Decodes a JPEG, PNG or WebP of any size to (H, W, 3) uint8 RGB. Raises ValueError if it is damaged.

    Damage inside a JPEG that libjpeg tolerates is not detected; `partial-fc sets check` detects it.
    """
    # OpenCV fills the missing rows of a truncated JPEG with gray, in some versions without an error.
    if encoded.startswith(JPEG_START) and encoded.rfind(JPEG_END) < 0:
        raise ValueError(f"is a JPEG truncated after {len(encoded)} bytes")
    return decode(encoded, cv2.IMREAD_COLOR_RGB)


def decode(encoded: bytes, flag: int) -> np.ndarray:
    """Returns (H, W, 3) uint8 in the order of ``flag``, of cv2. Raises ValueError if the file cannot be decoded."""
    try:
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), flag) if encoded else None
    except cv2.error as error:
        if "MAX_IMAGE" in error.err:
            raise ValueError(f"is larger than OPENCV_IO_MAX_IMAGE_PIXELS allows ({len(encoded)} bytes)") from None
        image = None
    if image is None:
        raise ValueError(f"cannot be decoded ({len(encoded)} bytes)")
    return image


def color_channels(encoded: bytes) -> int | None:
    """Reads the number of channels of a JPEG or PNG, None for another format; decoding always returns three."""
    if encoded.startswith(PNG_START):
        return PNG_CHANNELS.get(encoded[25]) if len(encoded) > 25 else None
    if not encoded.startswith(JPEG_START):
        return None
    channels = [3] if COLOR_FRAME in encoded else [frame[2] for frame in jpeg_frames(encoded)]
    return max(channels) if channels else None


def jpeg_frames(encoded: bytes) -> list[tuple[int, int, int]]:
    """Returns (height, width, channels) of a JPEG as stored, and of thumbnails in it."""
    return [struct.unpack(">HHB", frame) for frame in JPEG_FRAME.findall(encoded)]


def augment(image: np.ndarray, draws: Sequence[float], how: Augmentation) -> np.ndarray:
    """Returns the augmented image (H, W, 3); may change `image`. `draws` are DRAWS random numbers in [0, 1)."""
    if how.rand_mirror and draws[0] < 0.5:
        image = cv2.flip(image, 1)
    if how.color_jittering > 0:
        jitter_color(image, [1 + how.color_jittering * (2 * draw - 1) for draw in draws[1:4]])
    if how.jpeg_compression > 0 and draws[7] < 0.5:
        image = compress(image, how.jpeg_compression + int(draws[8] * (101 - how.jpeg_compression)))
    if how.cutout > 0 and draws[4] < 0.5:
        erase_square(image, how.cutout, draws[5], draws[6])
    return image


def compress(image: np.ndarray, quality: int) -> np.ndarray:
    """Returns `image` (H, W, 3) after JPEG compression with `quality` 1 .. 100."""
    _, encoded = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, quality])
    return cv2.imdecode(encoded, cv2.IMREAD_COLOR_RGB)


def jitter_color(image: np.ndarray, factors: Sequence[float]) -> None:
    """Scales brightness, contrast (about the mean gray) and saturation (about each pixel's gray) by `factors` (3)."""
    brightness, contrast, saturation = (np.float32(factor) for factor in factors)
    pixels = image.astype(np.float32) * brightness
    mean_gray = (pixels @ LUMA).mean()
    pixels = mean_gray + (pixels - mean_gray) * contrast
    gray = (pixels @ LUMA)[..., None]
    pixels = gray + (pixels - gray) * saturation
    image[:] = np.clip(np.rint(pixels), 0, 255)


def erase_square(image: np.ndarray, side: int, row: float, column: float) -> None:
    """Erases a square of `side` pixels whose center is at the fractions `row`, `column` of the image."""
    top = int(row * image.shape[0]) - side // 2
    left = int(column * image.shape[1]) - side // 2
    image[max(top, 0) : top + side, max(left, 0) : left + side] = ERASED
