"""What the bytes of an image file say without decoding it: its format, size, channels and EXIF orientation."""

import io
import re
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

from PIL import Image

from . import avif

JPEG_START, JPEG_END = b"\xff\xd8", b"\xff\xd9"
# A marker of a JPEG with what follows it (ITU-R T.81, B.1.1): libjpeg skips other bytes before one.
MARKER = re.compile(rb"\xff([\x01-\xfe])(.{0,8})", re.DOTALL)
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # the markers of a frame
WITHOUT_LENGTH, FIRST_PIXELS = frozenset([0x01, *range(0xD0, 0xD8)]), 0xDA
# Segments of a JPEG that may precede EXIF: those of applications, and comments; with their length.
SEGMENT = re.compile(rb"\xff[\xe0-\xef\xfe](..)", re.DOTALL)
PNG_START, PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xae\x42\x60\x82"
PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}  # by the color type of the header; a palette contains RGB
TIFF_STARTS, GIF_START = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), b"GIF8"  # two of BigTIFF
JP2_STARTS = b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51"  # the latter of its bare codestream, whose size follows
# Where width and height begin, the bits from one to the other, those that count, and what is added.
WEBP_SIZES = {b"VP8 ": (26, 16, 0x3FFF, 0), b"VP8L": (21, 14, 0x3FFF, 1), b"VP8X": (24, 24, 0xFFFFFF, 1)}
HDR_SIZE = re.compile(rb"-Y (\d{1,9}) \+X (\d{1,9})")  # of a Radiance HDR, which Pillow does not read
AVIF = re.compile(rb"....ftyp.{0,48}avi[fs]", re.DOTALL)  # the brands of the file, of four letters
EXIF_START = b"Exif\0\0"
ORIENTATION = 0x0112  # tag of EXIF, which is a TIFF header
INTEGER_BYTES = {1: 1, 3: 2, 4: 4}  # by type of a TIFF field
FORMATS = (
    (JPEG_START, ".jpg"),
    (PNG_START, ".png"),
    *((start, ".tif") for start in TIFF_STARTS),
    (GIF_START, ".gif"),
    *((start, ".jp2") for start in JP2_STARTS),
)
SMALL = 1 << 20  # pixels that frames of an AVIF may always have
HEADER = 64  # bytes of a file that say which format it has


class Header(NamedTuple):
    """What an image file says of its pixels, as they are stored, before an EXIF orientation."""

    height: int
    width: int
    channels: int | None = None  # of a JPEG or PNG; decoding always returns three

    @property
    def pixels(self) -> int:
        """Their number."""
        return self.height * self.width


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


def is_animated_png(encoded: bytes) -> bool:
    """Whether a file is a PNG with more frames."""
    return encoded.startswith(PNG_START) and b"acTL" in encoded


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


def header(encoded: bytes) -> Header:
    """Reads the size of an image before it is decoded: some KB may become a gigabyte of pixels.

    Raises:
        ValueError: no header of a known format, or one of more pixels than Pillow opens; does not name the file.
    """
    found: Header | None = None
    if encoded.startswith(JPEG_START):
        found = _jpeg_header(encoded)
    elif encoded.startswith(PNG_START):
        if len(encoded) > 25:
            width, height, color = struct.unpack_from(">4xIIxB", encoded, 12)
            found = Header(height, width, PNG_CHANNELS.get(color))
    elif is_webp(encoded):
        if encoded[12:16] in WEBP_SIZES:
            place, bits, mask, more = WEBP_SIZES[encoded[12:16]]
            both = int.from_bytes(encoded[place : place + 6], "little")
            found = Header((both >> bits & mask) + more, (both & mask) + more)
    elif encoded.startswith(JP2_STARTS):
        found = _jp2_header(encoded)
    elif encoded.startswith(b"#?R"):
        found = _largest(tuple(map(int, size)) for size in HDR_SIZE.findall(encoded))
    else:
        try:
            with opened(encoded) as image:
                found = Header(image.height, image.width)
        except Image.DecompressionBombError:
            raise too_large(encoded) from None
        except Exception:  # its readers of many formats raise any
            pass
    if found is None:
        lacks = is_avif(encoded) and ".avif" not in Image.registered_extensions()
        reason = f": Pillow {Image.__version__} does not read AVIF, 11.3 does" if lacks else ""
        raise ValueError(f"cannot be decoded ({len(encoded)} bytes){reason}")
    if avif.is_boxes(encoded):
        _check_frames(encoded, found)
    return found


def opened(encoded: bytes) -> Image.Image:
    """Returns an image of Pillow, whose pixels it has not decoded yet; of an AVIF it has no other frame."""
    return Image.open(io.BytesIO(avif.without_tracks(encoded) if avif.is_boxes(encoded) else encoded))


def _check_frames(encoded: bytes, found: Header) -> None:
    """Raises ValueError if what is decoded, with alpha and in several parts, is much larger than the image."""
    pixels = avif.coded_pixels(encoded)
    if pixels > 4 * found.pixels + SMALL:
        raise ValueError(f"has frames of {pixels:,} pixels, but says that it has {found.width}x{found.height}")


def _jpeg_header(encoded: bytes) -> Header | None:
    """Reads the first frame before the pixels: no thumbnail in a segment before it."""
    place = len(JPEG_START)
    while match := MARKER.search(encoded, place):
        marker, parameters = match[1][0], match[2]
        if marker == FIRST_PIXELS or len(parameters) < 2:
            return None
        if marker in FRAMES:
            return Header._make(struct.unpack(">xxxHHB", parameters)) if len(parameters) == 8 else None
        place = match.start() + 2 + (0 if marker in WITHOUT_LENGTH else int.from_bytes(parameters[:2], "big"))
    return None


def _jp2_header(encoded: bytes) -> Header | None:
    places = [match.end() for match in re.finditer(JP2_STARTS[1], encoded) if match.end() + 20 <= len(encoded)]
    areas = [struct.unpack_from(">4xIIII", encoded, place) for place in places]
    return _largest((bottom - top, right - left) for right, bottom, left, top in areas)


def _largest(sizes: Iterable[tuple]) -> Header | None:
    """Returns the largest (height, width): comments and boxes before the true one may name any other."""
    found = [Header(*size) for size in sizes]
    return max(found, key=lambda each: each.pixels) if found else None


def too_large(encoded: bytes) -> ValueError:
    """Returns the error for an image with too many pixels."""
    return ValueError(f"is larger than OPENCV_IO_MAX_IMAGE_PIXELS allows ({len(encoded)} bytes)")


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
        with opened(encoded) as image:
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
