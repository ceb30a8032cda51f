"""What the bytes of an image file say without decoding it: its format, channels and EXIF orientation."""

import io
import re
import struct
from typing import Any

from PIL import Image

JPEG_START, JPEG_END = b"\xff\xd8", b"\xff\xd9"
# The frame of a JPEG (ITU-R T.81, B.2.2): marker, length, 8 bits, height, width, channels. In the pixels no 0xFF is
# followed by such a marker.
JPEG_FRAME = re.compile(
    rb"\xff[\xc0-\xc3\xc5-\xc7\xc9-\xcb\xcd-\xcf]\x00[\x0b\x11\x14]\x08(....[\x01\x03\x04])", re.DOTALL
)
COLOR_FRAME = b"\xff\xc0\x00\x11\x08"  # of a baseline JPEG of three channels: a search is faster than the pattern
# Segments of a JPEG that may precede EXIF: those of applications, and comments; with their length.
SEGMENT = re.compile(rb"\xff[\xe0-\xef\xfe](..)", re.DOTALL)
PNG_START, PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xae\x42\x60\x82"
PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}  # by the color type of the header; a palette contains RGB
TIFF_STARTS, GIF_START = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), b"GIF8"  # two of BigTIFF
AVIF = re.compile(rb"....ftyp.{0,48}avi[fs]", re.DOTALL)  # the brands of the file, of four letters
EXIF_START = b"Exif\0\0"
ORIENTATION = 0x0112  # tag of EXIF, which is a TIFF header
INTEGER_BYTES = {1: 1, 3: 2, 4: 4}  # by type of a TIFF field
FORMATS = (
    (JPEG_START, ".jpg"),
    (PNG_START, ".png"),
    *((start, ".tif") for start in TIFF_STARTS),
    (GIF_START, ".gif"),
    (b"\0\0\0\x0cjP  ", ".jp2"),
    (b"\xff\x4f\xff\x51", ".jp2"),  # its bare codestream, which OpenCV reads under that name, too
)
HEADER = 64  # bytes of a file that say which format it has


def extension(encoded: bytes) -> str:
    """Returns the file name extension of the format, by the first HEADER bytes of a file; "" for an unknown format."""
    if is_webp(encoded):
        return ".webp"
    if is_avif(encoded):
        return ".avif"
    if encoded.startswith(b"BM") and not any(encoded[6:10]):  # reserved; a text may begin with the letters
        return ".bmp"
    return next((ending for start, ending in FORMATS if encoded.startswith(start)), "")


def is_webp(encoded: bytes) -> bool:
    """Whether a file is a WebP."""
    return encoded[:4] == b"RIFF" and encoded[8:12] == b"WEBP"


def is_avif(encoded: bytes) -> bool:
    """Whether a file is an AVIF, by its first 64 bytes, and no other of such boxes: HEIC, or a video."""
    return AVIF.match(encoded) is not None


def check_whole(encoded: bytes) -> None:
    """Raises ValueError for a truncated file: decoders fill the rest with gray, some without an error."""
    is_complete = True
    if encoded.startswith(JPEG_START):
        is_complete = encoded.rfind(JPEG_END) >= 0
    elif encoded.startswith(PNG_START):
        is_complete = encoded.rfind(PNG_END) >= 0
    elif is_webp(encoded):
        is_complete = len(encoded) >= 8 + int.from_bytes(encoded[4:8], "little")
    if not is_complete:
        raise ValueError(f"is truncated after {len(encoded)} bytes")


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


def orientation(encoded: bytes) -> int:
    """Returns the EXIF orientation of an image file, 1 for an upright one. An AVIF turns by its own properties, too."""
    if encoded.startswith(JPEG_START):
        return exif_orientation(_jpeg_exif(encoded))
    if encoded.startswith(PNG_START):
        _, found, exif = encoded.partition(b"eXIf")
        return exif_orientation(exif) if found else 1
    if is_webp(encoded):
        _, found, exif = encoded.rpartition(b"EXIF") if encoded[12:16] == b"VP8X" else (b"", b"", b"")
        return exif_orientation(exif[4:]) if found else 1
    if encoded.startswith(TIFF_STARTS):
        return exif_orientation(encoded)
    if is_avif(encoded):
        with Image.open(io.BytesIO(encoded)) as image:
            return exif_orientation(image.info.get("exif", b""))
    return 1


def exif_orientation(exif: bytes) -> int:
    """Returns the orientation 1 .. 8 in EXIF data, 1 if it has none."""
    tiff = exif.removeprefix(EXIF_START)
    order: Any = {b"II": "little", b"MM": "big"}.get(tiff[:2])
    if order is None:
        return 1

    def integer(place: int, size: int) -> int:
        return int.from_bytes(tiff[place : place + size], order)

    first = integer(4, 4) + 2
    for field in range(first, min(first + 12 * integer(first - 2, 2), len(tiff)), 12):
        if integer(field, 2) == ORIENTATION:
            found = integer(field + 8, INTEGER_BYTES.get(integer(field + 2, 2), 0))
            return found if 1 <= found <= 8 else 1
    return 1


def _jpeg_exif(encoded: bytes) -> bytes:
    """Returns the EXIF data of a JPEG, b"" if it has none."""
    place = len(JPEG_START)
    while segment := SEGMENT.match(encoded, place):
        end = place + 2 + int.from_bytes(segment[1], "big")
        if encoded.startswith(EXIF_START, place + 4):
            return encoded[place + 4 : end]
        place = end
    return b""
