"""Decodes and augments face images.

All readers of images call decode_rgb, so that size, orientation and color are handled in one place. OpenCV decodes most
formats. Pillow decodes those for which OpenCV's result depends on its version (GIF, AVIF, and animated PNG, whose
frames outside of the image crash OpenCV 4.11), and TIFF, whose colors OpenCV changes if there is alpha or another color
space. The EXIF orientation is applied here, because OpenCV applies it for some formats in some versions.

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
TILE_WIDTH, TILE_LENGTH = 322, 323  # tags of a TIFF; tiles can be larger than the image
FLAGS = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
ERASED = 128  # gray, close to zero after the normalization (x - 127.5) / 128
LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601, as in JPEG
DRAWS = 9  # random numbers that `augment` uses for an image


class Augmentation(NamedTuple):
    """Random changes of training images."""

    rand_mirror: bool = False  # mirror left-right with probability 1/2
    cutout: int = 0  # side in pixels of a square erased with probability 1/2, clipped at the border
    color_jittering: float = 0  # c; brightness, contrast and saturation are each scaled by 1 - c to 1 + c
    jpeg_compression: int = 0  # with probability 1/2, compress to a JPEG quality from this number to 100; 0 for never

    def check(self) -> None:
        """Raises ValueError if a number is out of range."""
        if self.cutout < 0:
            raise ValueError(f"cutout must be at least 0 pixels, got {self.cutout}")
        if not 0 <= self.color_jittering <= 1:
            raise ValueError(f"color_jittering must be from 0 to 1, got {self.color_jittering}")
        if not 0 <= self.jpeg_compression <= 100:
            raise ValueError(f"jpeg_compression must be a quality from 1 to 100, or 0, got {self.jpeg_compression}")


class WrongSizeError(ValueError):
    """An image is valid, but has another size or number of channels than expected."""


def decode_rgb(encoded: bytes, image_size: tuple | None, only_color: bool = False) -> np.ndarray:
    """Decodes an image file to (H, W, 3) uint8 RGB, upright.

    Damage inside a JPEG that libjpeg tolerates is not detected, see utils/decoder_messages.py.

    Args:
        encoded: content of the file.
        image_size: (H, W), checked before decoding; None for any size that OPENCV_IO_MAX_IMAGE_PIXELS allows.
        only_color: refuse a JPEG or PNG that is gray or has alpha.

    Raises:
        WrongSizeError: the image has another size, or channels that `only_color` refuses. These messages do not name
            the file.
        ValueError: it is truncated, too large or damaged, or its pixels have no defined range.
    """
    check_whole(encoded)
    stored = header(encoded)
    if stored.pixels > int(os.environ[MAX_PIXELS_VARIABLE]):
        raise too_large(encoded)
    if only_color and stored.channels is not None and stored.channels != 3:
        raise WrongSizeError(f"has {plural(stored.channels, 'channel')} instead of 3")
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


decode_color = partial(decode_rgb, only_color=True)  # a former name that users' programs import
decode_any_size = partial(decode_rgb, image_size=None)


def check_size(size: tuple, image_size: tuple) -> None:
    """Raises WrongSizeError if the ``size`` (H, W) of an image is not ``image_size``."""
    if tuple(size) != tuple(image_size):
        raise WrongSizeError(f"has {size[0]}x{size[1]} pixels instead of {image_size[0]}x{image_size[1]}")


def rgb_of(image: Image.Image) -> np.ndarray:
    """Returns the pixels of a Pillow image, equal to `decode_any_size` of its file: (H, W, 3) uint8 RGB, upright.

    Raises:
        ValueError: its mode has no defined range (I, F), or cannot be converted.
        OSError: its file is damaged.
    """
    if image.mode in ("I", "F"):
        raise ValueError(f"has pixels of 32 bits (mode {image.mode}), whose range is not known: save it with 8 bits")
    if image.mode.startswith("I;16"):
        return np.repeat((upright(image) >> 8).astype(np.uint8)[..., None], 3, axis=2)
    # Conversion of a palette with transparency to RGB would warn.
    converted = image.convert("RGBA" if image.mode in ("P", "PA") else "RGB")
    return upright(image, np.asarray(converted)[..., :3])


def upright(image: Image.Image, pixels: np.ndarray | None = None) -> np.ndarray:
    """Applies the EXIF orientation of a Pillow image to its pixels, or to `pixels` (H, W, ...)."""
    stored = np.asarray(image) if pixels is None else pixels  # Pillow has already turned those of a TIFF
    return np.array(turned(stored, exif_orientation(image.info.get("exif", b""))), order="C")


def turned(image: np.ndarray, orientation: int) -> np.ndarray:
    """Applies an EXIF orientation 1 .. 8 to a stored image (H, W, ...)."""
    if orientation == 1:
        return image
    if orientation >= 5:
        image = image.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    return np.ascontiguousarray(image[:, ::-1] if orientation in (2, 3, 6, 7) else image)


def augment(image: np.ndarray, draws: Sequence[float], augmentation: Augmentation) -> np.ndarray:
    """Returns the augmented image (H, W, 3); may modify `image`. `draws` are DRAWS random numbers in [0, 1)."""
    if augmentation.rand_mirror and draws[0] < 0.5:
        image = cv2.flip(image, 1)
    if augmentation.color_jittering > 0:
        jitter_color(image, [1 + augmentation.color_jittering * (2 * draw - 1) for draw in draws[1:4]])
    if augmentation.jpeg_compression > 0 and draws[7] < 0.5:
        quality = [
            cv2.IMWRITE_JPEG_QUALITY,
            augmentation.jpeg_compression + int(draws[8] * (101 - augmentation.jpeg_compression)),
        ]
        _, encoded = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), quality)
        image = cv2.imdecode(encoded, cv2.IMREAD_COLOR_RGB)
    if augmentation.cutout > 0 and draws[4] < 0.5:
        top, left = (int(draws[5 + axis] * image.shape[axis]) - augmentation.cutout // 2 for axis in (0, 1))
        image[max(top, 0) : top + augmentation.cutout, max(left, 0) : left + augmentation.cutout] = ERASED
    return image


def jitter_color(image: np.ndarray, factors: Sequence[float]) -> None:
    """Scales brightness, contrast (around the mean gray) and saturation (around each pixel's gray) by `factors` (3)."""
    brightness, contrast, saturation = (np.float32(factor) for factor in factors)
    pixels = image.astype(np.float32) * brightness
    mean_gray = (pixels @ LUMA).mean()
    pixels = mean_gray + (pixels - mean_gray) * contrast
    gray = (pixels @ LUMA)[..., None]
    pixels = gray + (pixels - gray) * saturation
    image[:] = np.clip(np.rint(pixels), 0, 255)


def _decode_by_pillow(encoded: bytes) -> np.ndarray:
    try:
        with opened(encoded) as image:
            tags = getattr(image, "tag_v2", {})
            if tags.get(TILE_WIDTH, 0) * tags.get(TILE_LENGTH, 0) > int(os.environ[MAX_PIXELS_VARIABLE]):
                raise too_large(encoded)
            return rgb_of(image)
    except ValueError:
        raise
    except Exception:  # Pillow's readers of damaged files raise almost any exception
        raise ValueError(f"cannot be decoded ({len(encoded)} bytes)") from None
