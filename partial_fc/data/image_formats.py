"""The headers of image files, read without decoding: format, size, channels and EXIF orientation."""

import io
import re
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

from PIL import Image

from . import avif

JPEG_START, JPEG_END = b"\xff\xd8", b"\xff\xd9"
# A JPEG marker and the bytes after it (ITU-T T.81, B.1.1). A search skips other bytes, as libjpeg does.
MARKER = re.compile(rb"\xff([\x01-\xfe])(.{0,8})", re.DOTALL)
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # markers of a frame header
WITHOUT_LENGTH = frozenset([0x01, *range(0xD0, 0xD8)])  # markers that no length follows
START_OF_SCAN, END, APP1 = 0xDA, 0xD9, 0xE1
# Decoding a progressive JPEG visits all pixels in each scan; usually there are about ten scans.
FEW_SCANS, MAX_SCANNED = 64, 1 << 32  # scans allowed at any size; limit of pixels times scans
PNG_START, PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xae\x42\x60\x82"
PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}  # by the color type in the header; a palette (3) contains RGB
TIFF_STARTS, GIF_START = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), b"GIF8"  # TIFF and BigTIFF in both byte orders
JP2_STARTS = b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51"  # the latter begins a codestream, and its size follows
# The coding style of a JPEG 2000, of all components (COD) or of one (COC; ITU-T T.800, A.6.1 and A.6.2). The groups are
# length, style (bit 0: sizes of precincts follow), layers, then levels, sizes of code-blocks and sizes of precincts.
CODING = re.compile(rb"\xff(?=(?:\x52(..)(.).(..).|\x53(..).(.)())(.)(.)(.)..(.{0,33}))", re.DOTALL)
# OpenJPEG's memory grows with these numbers, which a few bytes can set to anything.
MAX_TILES, MAX_LAYERS, MAX_COMPONENTS, MAX_BLOCKS, MAX_PRECINCTS = 4096, 256, 256, 1 << 19, 1 << 17
# By kind of WebP: offset of the width, bits from the width to the height, mask, and what to add to the stored value.
WEBP_SIZES = {b"VP8 ": (26, 16, 0x3FFF, 0), b"VP8L": (21, 14, 0x3FFF, 1), b"VP8X": (24, 24, 0xFFFFFF, 1)}
HDR_SIZE = re.compile(rb"-Y (\d{1,9}) \+X (\d{1,9})")  # of a Radiance HDR, which Pillow does not read
AVIF = re.compile(rb"....ftyp.{0,48}avi[fs]", re.DOTALL)  # one of the file's brands is avif or avis
EXIF_START = b"Exif\0\0"
ORIENTATION = 0x0112  # an EXIF tag; EXIF data are a TIFF header
INTEGER_BYTES = {1: 1, 3: 2, 4: 4}  # by type of a TIFF field
FORMATS = (
    (JPEG_START, ".jpg"),
    (PNG_START, ".png"),
    *((start, ".tif") for start in TIFF_STARTS),
    (GIF_START, ".gif"),
    *((start, ".jp2") for start in JP2_STARTS),
)
SMALL = 1 << 20  # total pixels of frames that any AVIF may have
HEADER = 64  # bytes at the start of a file that identify its format


class Header(NamedTuple):
    """The size of the stored image, before its EXIF orientation is applied."""

    height: int
    width: int
    channels: int | None = None  # of a JPEG or PNG; decoding always returns three
    orientation: int = 1  # of EXIF, 1 .. 8; 1 is upright

    @property
    def pixels(self) -> int:
        """Number of pixels."""
        return self.height * self.width


def extension(encoded: bytes) -> str:
    """Returns the file name extension of a format by the first HEADER bytes; "" for an unknown format."""
    if is_webp(encoded):
        return ".webp"
    if is_avif(encoded):
        return ".avif"
    if encoded.startswith(b"BM") and not any(encoded[6:10]):  # reserved bytes; a text can begin with BM, too
        return ".bmp"
    return next((ending for start, ending in FORMATS if encoded.startswith(start)), "")


def is_webp(encoded: bytes) -> bool:
    """Whether a file is a WebP."""
    return encoded[:4] == b"RIFF" and encoded[8:12] == b"WEBP"


def is_avif(encoded: bytes) -> bool:
    """Whether a file is an AVIF, by its first 64 bytes. HEIC files and videos have boxes, too, but of other brands."""
    return AVIF.match(encoded) is not None


def is_animated_png(encoded: bytes) -> bool:
    """Whether a file is a PNG with several frames."""
    return encoded.startswith(PNG_START) and b"acTL" in encoded


def check_whole(encoded: bytes) -> None:
    """Raises ValueError for a truncated file, whose missing part some decoders fill with gray without an error."""
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
    """Reads the header of an image file, so that sizes can be checked before some KB become a gigabyte of pixels.

    Raises:
        ValueError: there is no header of a known format, or the image is too large. The message does not name the file.
    """
    result: Header | None = None
    if encoded.startswith(JPEG_START):
        result = _jpeg_header(encoded)
        if result is not None and (scans := _scans(encoded)) * result.pixels > MAX_SCANNED:
            raise ValueError(f"has {scans} scans of {result.pixels:,} pixels: save it again")
    elif encoded.startswith(PNG_START):
        if len(encoded) > 25:
            width, height, color = struct.unpack_from(">4xIIxB", encoded, 12)
            result = Header(height, width, PNG_CHANNELS.get(color), exif_orientation(encoded.partition(b"eXIf")[2]))
    elif is_webp(encoded):
        if encoded[12:16] in WEBP_SIZES:
            start, bits, mask, offset = WEBP_SIZES[encoded[12:16]]
            both = int.from_bytes(encoded[start : start + 6], "little")
            _, chunk, exif = encoded.rpartition(b"EXIF") if encoded[12:16] == b"VP8X" else (b"", b"", b"")
            orientation = exif_orientation(exif[4:]) if chunk else 1
            result = Header((both >> bits & mask) + offset, (both & mask) + offset, None, orientation)
    elif encoded.startswith(JP2_STARTS):
        result = _jp2_header(encoded)
    elif encoded.startswith(b"#?R"):
        result = _largest(tuple(map(int, size)) for size in HDR_SIZE.findall(encoded))
    else:
        try:
            with opened(encoded) as image:
                exif = encoded if encoded.startswith(TIFF_STARTS) else image.info.get("exif", b"")
                result = Header(image.height, image.width, None, exif_orientation(exif))
        except Image.DecompressionBombError:
            raise too_large(encoded) from None
        except Exception:  # Pillow's readers of damaged files raise almost any exception
            pass
    if result is None:
        lacks = is_avif(encoded) and ".avif" not in Image.registered_extensions()
        reason = f": Pillow {Image.__version__} does not read AVIF, 11.3 does" if lacks else ""
        raise ValueError(f"cannot be decoded ({len(encoded)} bytes){reason}")
    # All frames are decoded, such as alpha and the tiles of a grid, so a few times the size of the image is allowed.
    if avif.is_boxes(encoded) and (pixels := avif.coded_pixels(encoded)) > 4 * result.pixels + SMALL:
        raise ValueError(f"has frames of {pixels:,} pixels, but says that it has {result.width}x{result.height}")
    return result


def opened(encoded: bytes) -> Image.Image:
    """Opens an image with Pillow without decoding it; of an animated AVIF, the still image."""
    return Image.open(io.BytesIO(avif.without_tracks(encoded) if avif.is_boxes(encoded) else encoded))


def _jpeg_header(encoded: bytes) -> Header | None:
    """Reads the first EXIF data and the first frame header; skips thumbnails, which are inside of segments."""
    position, exif = len(JPEG_START), b""
    while match := MARKER.search(encoded, position):
        marker, parameters = match[1][0], match[2]
        if marker == START_OF_SCAN or len(parameters) < 2:
            return None
        if marker in FRAMES:
            if len(parameters) < 8:
                return None
            orientation = exif_orientation(exif) if exif else 1
            return Header._make((*struct.unpack(">xxxHHB", parameters), orientation))
        position = match.start() + 2 + (0 if marker in WITHOUT_LENGTH else int.from_bytes(parameters[:2], "big"))
        if marker == APP1 and parameters[2:] == EXIF_START:
            exif = exif or encoded[match.start() + 4 : position]
    return None


def _scans(encoded: bytes) -> int:
    """Returns an upper bound of the number of scans in a JPEG."""
    count = encoded.count(bytes([0xFF, START_OF_SCAN]))
    if count <= FEW_SCANS:
        return count
    position, count = len(JPEG_START), 0  # counts again without thumbnails and bytes after the image
    while (match := MARKER.search(encoded, position)) and match[1][0] != END:
        count += match[1][0] == START_OF_SCAN
        position = match.start() + 2 + (0 if match[1][0] in WITHOUT_LENGTH else int.from_bytes(match[2][:2], "big"))
    return count


def _jp2_header(encoded: bytes) -> Header | None:
    """Reads the size of a JPEG 2000. Raises ValueError if decoding its tiles or blocks would exhaust the memory."""
    starts = [match.end() for match in re.finditer(JP2_STARTS[1], encoded) if match.end() + 38 <= len(encoded)]
    sizes = [struct.unpack_from(">4x8IH", encoded, start) for start in starts]
    for right, bottom, _, _, width, height, left, top, components in sizes:
        tiles = _ceil_div(right - left, max(width, 1)) * _ceil_div(bottom - top, max(height, 1))
        if tiles > MAX_TILES or components > MAX_COMPONENTS:
            raise ValueError(f"has {tiles:,} tiles and {components:,} components: save it again")
    result = _largest((bottom - top, right - left) for right, bottom, left, top, *_ in sizes)
    if result is None:
        return None
    for match in CODING.finditer(encoded):
        length, has_precincts, layers = match[1] or match[4], (match[2] or match[5])[0] & 1, match[3] or b""
        levels, width, height = match[7][0], match[8][0] + 2, match[9][0] + 2
        precincts = match[10][: levels + 1] if has_precincts else b""
        if int.from_bytes(length, "big") != (12 if match[1] else 9) + len(precincts):  # not a coding style
            continue
        blocks = _ceil_div(result.width, 1 << width) * _ceil_div(result.height, 1 << height)
        num_precincts = sum(
            _ceil_div(result.width, 1 << level + (size & 15)) * _ceil_div(result.height, 1 << level + (size >> 4))
            for level, size in enumerate(reversed(precincts))
        )
        if int.from_bytes(layers, "big") > MAX_LAYERS or blocks > MAX_BLOCKS or num_precincts > MAX_PRECINCTS:
            raise ValueError("has more layers, or smaller blocks, than usual: save it again")
    return result


def _ceil_div(length: int, size: int) -> int:
    return -(-length // size)


def _largest(sizes: Iterable[tuple]) -> Header | None:
    """Returns the largest (height, width), because comments and boxes before the true size can contain other sizes."""
    headers = [Header(*size) for size in sizes]
    return max(headers, key=lambda header: header.pixels) if headers else None


def too_large(encoded: bytes) -> ValueError:
    """Returns the error for an image with too many pixels."""
    return ValueError(f"is larger than OPENCV_IO_MAX_IMAGE_PIXELS allows ({len(encoded)} bytes)")


def exif_orientation(exif: bytes) -> int:
    """Returns the orientation 1 .. 8 in EXIF data, 1 if it has none."""
    tiff = exif.removeprefix(EXIF_START)
    order: Any = {b"II": "little", b"MM": "big"}.get(tiff[:2])
    if order is None:
        return 1

    def integer(position: int, size: int) -> int:
        return int.from_bytes(tiff[position : position + size], order)

    first = integer(4, 4) + 2
    for field in range(first, min(first + 12 * integer(first - 2, 2), len(tiff)), 12):
        if integer(field, 2) == ORIENTATION:
            orientation = integer(field + 8, INTEGER_BYTES.get(integer(field + 2, 2), 0))
            return orientation if 1 <= orientation <= 8 else 1
    return 1
