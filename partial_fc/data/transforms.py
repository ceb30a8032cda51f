"""Decodes and augments one face image.

Every reader of images passes here, so that their size, orientation and colour are decided once. OpenCV decodes most
formats, Pillow those that OpenCV reads differently by its version (GIF, AVIF, animated PNG, whose frames outside of the
image crash OpenCV 4.11), or whose colour it changes with alpha and in other colour spaces (TIFF). The EXIF orientation
is applied here: OpenCV applies that of some formats in some versions.

Shapes: H, W image size; images are (H, W, 3) uint8 RGB.
"""

import os
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from partial_fc import MAX_PIXELS_VARIABLE
from partial_fc.utils.text import plural

from .image_formats import (
    GIF_START,
    TIFF_STARTS,
    check_whole,
    exif_orientation,
    header,
    is_animated_png,
    is_avif,
    opened,
    too_large,
)

BY_PILLOW = (*TIFF_STARTS, GIF_START)
TILE_WIDTH, TILE_LENGTH = 322, 323  # tags of a TIFF, whose image may be smaller
FLAGS = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
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


class WrongSizeError(ValueError):
    """An image is valid, but has another size than expected."""


def decode_rgb(encoded: bytes, image_size: tuple | None, only_color: bool = False) -> np.ndarray:
    """Decodes an image file to (H, W, 3) uint8 RGB, upright.

    Damage inside a JPEG that libjpeg tolerates is not detected, see utils/decoder_messages.py.

    Args:
        encoded: content of the file.
        image_size: (H, W); None for any size that OPENCV_IO_MAX_IMAGE_PIXELS allows. Another image is not decoded.
        only_color: refuse a JPEG or PNG that is gray or has alpha, too.

    Raises:
        WrongSizeError: it has another size; does not name the file, as no error here does.
        ValueError: it is truncated, too large or damaged, or its pixels have no defined range.
    """
    check_whole(encoded)
    stored = header(encoded)
    if stored.pixels > int(os.environ[MAX_PIXELS_VARIABLE]):
        raise too_large(encoded)
    if only_color and stored.channels is not None and stored.channels != 3:
        raise ValueError(f"has {plural(stored.channels, 'channel')} instead of 3")
    if image_size is not None:
        check_size((stored.width, stored.height) if stored.orientation >= 5 else stored[:2], image_size)
    if encoded.startswith(BY_PILLOW) or is_avif(encoded) or is_animated_png(encoded):
        return _decode_by_pillow(encoded)
    try:
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), FLAGS)
    except cv2.error:
        image = None
    if image is None:
        raise ValueError(f"cannot be decoded ({len(encoded)} bytes)")
    return turned(image, stored.orientation)


decode_color = partial(decode_rgb, only_color=True)  # a former name, which programs of users import


def decode_any_size(encoded: bytes) -> np.ndarray:
    """As `decode_rgb`, of any size."""
    return decode_rgb(encoded, None)


def check_size(size: tuple, image_size: tuple) -> None:
    """Raises WrongSizeError if an image of ``size`` (H, W) has another one than expected."""
    if tuple(size) != tuple(image_size):
        raise WrongSizeError(f"has {size[0]}x{size[1]} pixels instead of {image_size[0]}x{image_size[1]}")


def rgb_of(image: Image.Image) -> np.ndarray:
    """Returns the pixels of an image of Pillow as `decode_any_size` does for its file: (H, W, 3) uint8 RGB, upright.

    Raises:
        ValueError: its mode has no defined range (I, F), or cannot be converted.
        OSError: its file is damaged.
    """
    if image.mode in ("I", "F"):
        raise ValueError(f"has pixels of 32 bits (mode {image.mode}), whose range is not known: save it with 8 bits")
    if image.mode.startswith("I;16"):
        return np.repeat((upright(image) >> 8).astype(np.uint8)[..., None], 3, axis=2)
    converted = image.convert("RGBA" if image.mode in ("P", "PA") else "RGB")  # RGB would warn of a transparent palette
    return upright(image, np.asarray(converted)[..., :3])


def upright(image: Image.Image, pixels: np.ndarray | None = None) -> np.ndarray:
    """Returns (H, W, ...), the pixels of an image of Pillow in its own mode, or others of it, as EXIF shows them."""
    stored = np.asarray(image) if pixels is None else pixels  # Pillow itself turns a TIFF when it reads the pixels
    return np.array(turned(stored, exif_orientation(image.info.get("exif", b""))), order="C")


def turned(image: np.ndarray, orientation: int) -> np.ndarray:
    """Returns a stored image (H, W, ...) as an EXIF orientation 1 .. 8 shows it."""
    if orientation == 1:
        return image
    if orientation >= 5:
        image = image.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    return np.ascontiguousarray(image[:, ::-1] if orientation in (2, 3, 6, 7) else image)


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


def _decode_by_pillow(encoded: bytes) -> np.ndarray:
    try:
        with opened(encoded) as image:
            tags = getattr(image, "tag_v2", {})
            if tags.get(TILE_WIDTH, 0) * tags.get(TILE_LENGTH, 0) > int(os.environ[MAX_PIXELS_VARIABLE]):
                raise too_large(encoded)
            return rgb_of(image)
    except ValueError:
        raise
    except Exception:  # its readers of many formats raise any
        raise ValueError(f"cannot be decoded ({len(encoded)} bytes)") from None
