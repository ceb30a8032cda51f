"""Converts image files to the form that a face set stores: H x W, three channels, upright, 8 bits, no EXIF orientation.

Images that have this form are kept byte for byte; others are decoded and encoded again. Only some readers (MXNet,
OpenCV) rotate images by their EXIF orientation, and training must not depend on the reader.
"""

from typing import NamedTuple

import cv2
import numpy as np

from .image_formats import JPEG_START, PNG_START, header
from .transforms import check_size, decode_rgb

PNG_RGB8 = b"\x08\x02"  # bit depth 8, color type 2
KEPT, ENCODED, RESIZED = "kept", "encoded", "resized"


class ImageOptions(NamedTuple):
    """How images are encoded."""

    size: int = 112  # H = W in pixels
    resize: bool = False  # scale images of other sizes instead of refusing them
    quality: int = 95  # JPEG quality
    format: str = "jpeg"  # "jpeg" or "png"


def encode_for_set(data: bytes | np.ndarray, options: ImageOptions) -> tuple[bytes, str]:
    """Converts the bytes of an image file, or pixels (H, W, 3) uint8 RGB.

    Returns:
        The encoded image; KEPT, ENCODED or RESIZED.

    Raises:
        WrongSizeError: the image has another size and `options.resize` is not set.
        ValueError: the image is damaged. The message does not name the file.
    """
    size = (options.size, options.size)
    if not isinstance(data, bytes):
        how = ENCODED if data.shape[:2] == size else RESIZED
        return encode(scaled(data, size, options.resize), options), how
    is_kept = data.startswith(JPEG_START) and header(data) == (*size, 3, 1)
    if data.startswith(PNG_START) and options.format == "png":
        is_kept = header(data)[:2] == size and data[24:26] == PNG_RGB8 and b"eXIf" not in data
    if is_kept:
        decode_rgb(data, size)  # raises an error if the file is damaged
        return data, KEPT
    image = decode_rgb(data, None if options.resize else size)
    return encode(resize(image, size), options), ENCODED if image.shape[:2] == size else RESIZED


def scaled(image: bytes | np.ndarray, size: tuple, scale: bool, only_color: bool = False) -> np.ndarray:
    """Returns an image of `size` (H, W), see decode_rgb; without `scale`, one of another size is refused."""
    if isinstance(image, bytes):
        image = decode_rgb(image, None if scale else size, only_color)
    elif not scale:
        check_size(image.shape[:2], size)
    return resize(image, size)


def resize(image: np.ndarray, size: tuple) -> np.ndarray:
    """Scales an image to (H, W) without cropping; faces must have been aligned."""
    if image.shape[:2] == tuple(size):
        return image
    shrinks = image.shape[0] >= size[0] and image.shape[1] >= size[1]
    return cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC)


def encode(image: np.ndarray, options: ImageOptions) -> bytes:
    """Encodes an image (H, W, 3) uint8 RGB as JPEG or PNG."""
    image = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    if options.format == "png":
        return cv2.imencode(".png", image)[1].tobytes()
    return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, options.quality])[1].tobytes()
