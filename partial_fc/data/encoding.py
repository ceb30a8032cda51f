"""Converts an image file to the encoded image that a face set stores: H x W, three channels, upright, 8 bits.

An image that meets this already is kept byte for byte. Gray becomes three equal channels; alpha and more than 8 bits
are dropped, as readers of training images do. An EXIF orientation is applied and its tag removed: MXNet and OpenCV
rotate such images when they read them, other readers do not, and training must not depend on the reader.
"""

from typing import NamedTuple

import cv2
import numpy as np

from .transforms import JPEG_END, JPEG_START, decode, decode_rgb, jpeg_frames

PNG_START, PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xae\x42\x60\x82"
FORMATS = (
    (JPEG_START, ".jpg"),
    (PNG_START, ".png"),
    (b"BM", ".bmp"),
    (b"II*\0", ".tif"),
    (b"MM\0*", ".tif"),
    (b"\0\0\0\x0cjP  ", ".jp2"),
    (b"\xff\x4f\xff\x51", ".jp2"),  # its bare codestream, which OpenCV reads under that name, too
)
PNG_RGB8 = b"\x08\x02"  # bit depth 8, color type 2
KEPT, ENCODED, RESIZED = "kept", "encoded", "resized"


class ImageOptions(NamedTuple):
    """How images are encoded."""

    size: int = 112  # H = W in pixels
    resize: bool = False  # scale images of another size instead of refusing them
    quality: int = 95  # JPEG quality of encoded images
    format: str = "jpeg"  # "jpeg" or "png", of encoded images


class WrongSizeError(ValueError):
    """An image is valid, but has another size than expected."""


def encode_for_set(data: bytes, options: ImageOptions) -> tuple[bytes, str]:
    """Converts the bytes of an image file.

    Returns:
        (encoded image, KEPT, ENCODED or RESIZED).

    Raises:
        WrongSizeError: the image has another size and `options.resize` is not set.
        ValueError: the image is damaged; does not name the file.
    """
    check_whole(data)
    size = (options.size, options.size)
    if is_kept(data, options):
        decode_rgb(data, size)
        return data, KEPT
    image = decode_bgr(data)
    if image.shape[:2] == size:
        return encode(image, options), ENCODED
    if not options.resize:
        height, width = image.shape[:2]
        raise WrongSizeError(f"has {height}x{width} pixels instead of {size[0]}x{size[1]}")
    return encode(resize(image, size), options), RESIZED


def check_whole(data: bytes) -> None:
    """Raises ValueError for a truncated file: decoders fill the rest with gray, some without an error."""
    is_complete = True
    if data.startswith(JPEG_START):
        is_complete = data.rfind(JPEG_END) >= 0
    elif data.startswith(PNG_START):
        is_complete = data.rfind(PNG_END) >= 0
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        is_complete = len(data) >= 8 + int.from_bytes(data[4:8], "little")
    if not is_complete:
        raise ValueError(f"is truncated after {len(data)} bytes")


def is_kept(data: bytes, options: ImageOptions) -> bool:
    """Whether the file can be stored unchanged, provided that it can be decoded."""
    size = (options.size, options.size)
    if data.startswith(JPEG_START):
        frames, wanted = jpeg_frames(data), (*size, 3)
        fits = wanted in frames
        if fits and len(frames) > 1:  # one of them may be a thumbnail
            fits = decode(data, cv2.IMREAD_UNCHANGED).shape == wanted
        return fits and is_upright(data)
    if data.startswith(PNG_START) and options.format == "png":
        is_size = data[16:24] == size[1].to_bytes(4, "big") + size[0].to_bytes(4, "big")
        return is_size and data[24:26] == PNG_RGB8 and b"eXIf" not in data
    return False


def decode_bgr(data: bytes) -> np.ndarray:
    """Returns (H, W, 3) uint8 BGR, upright. Raises ValueError if the file is truncated or cannot be decoded."""
    check_whole(data)
    return decode(data, cv2.IMREAD_COLOR)


def is_upright(jpeg: bytes, upright: np.ndarray | None = None) -> bool:
    """Whether the image is displayed as it is stored: its EXIF segment, if there is one, turns it by nothing.

    ``upright`` is what `decode_bgr` returns, if it is known.
    """
    if b"Exif\0\0" not in jpeg:
        return True
    stored = decode(jpeg, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    return np.array_equal(stored, decode_bgr(jpeg) if upright is None else upright)


def resize(image: np.ndarray, size: tuple) -> np.ndarray:
    """Scales the image to (H, W), without cropping; faces must be aligned before."""
    shrinks = image.shape[0] >= size[0] and image.shape[1] >= size[1]
    return cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC)


def encode(image: np.ndarray, options: ImageOptions) -> bytes:
    """Encodes the image as JPEG or PNG."""
    if options.format == "png":
        return cv2.imencode(".png", image)[1].tobytes()
    return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, options.quality])[1].tobytes()


def extension(encoded: bytes) -> str:
    """Returns the file name extension of the format; "" for an unknown format."""
    if encoded[:4] == b"RIFF" and encoded[8:12] == b"WEBP":
        return ".webp"
    return next((ending for start, ending in FORMATS if encoded.startswith(start)), "")
