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
WITHOUT_LENGTH, FIRST_PIXELS, END, APP1 = frozenset([0x01, *range(0xD0, 0xD8)]), 0xDA, 0xD9, 0xE1
# A progressive JPEG has some ten scans, each of which decoding goes through all pixels for.
FEW_SCANS, SCANNED = 64, 1 << 32  # scans of the largest image; pixels of all scans
PNG_START, PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xae\x42\x60\x82"
PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}  # by the color type of the header; a palette contains RGB
TIFF_STARTS, GIF_START = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), b"GIF8"  # two of BigTIFF
JP2_STARTS = b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51"  # the latter of its bare codestream, whose size follows
# What a JPEG 2000 is coded in (ITU-T T.800, A.6.1 and A.6.2), of all components or of one: length, whether sizes of
# precincts follow, layers, levels, sizes of code-blocks, and the sizes of precincts, all but the layers by exponents.
CODING = re.compile(rb"\xff(?=(?:\x52(..)(.).(..).|\x53(..).(.)())(.)(.)(.)..(.{0,33}))", re.DOTALL)
# OpenJPEG's memory grows with their number, which some bytes state.
MOST_TILES, MOST_LAYERS, MOST_COMPONENTS, MOST_BLOCKS, MOST_PRECINCTS = 4096, 256, 256, 1 << 19, 1 << 17
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
    orientation: int = 1  # of EXIF, 1 .. 8; 1 is upright

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
    """Reads what an image file says before it is decoded: some KB may become a gigabyte of pixels.

    Raises:
        ValueError: no header of a known format, or one of more pixels than Pillow opens; does not name the file.
    """
    found: Header | None = None
    if encoded.startswith(JPEG_START):
        found = _jpeg_header(encoded)
        if found is not None and (scans := _scans(encoded)) * found.pixels > SCANNED:
            raise ValueError(f"has {scans} scans of {found.pixels:,} pixels: save it again")
    elif encoded.startswith(PNG_START):
        if len(encoded) > 25:
            width, height, color = struct.unpack_from(">4xIIxB", encoded, 12)
            found = Header(height, width, PNG_CHANNELS.get(color), exif_orientation(encoded.partition(b"eXIf")[2]))
    elif is_webp(encoded):
        if encoded[12:16] in WEBP_SIZES:
            place, bits, mask, more = WEBP_SIZES[encoded[12:16]]
            both = int.from_bytes(encoded[place : place + 6], "little")
            _, chunk, exif = encoded.rpartition(b"EXIF") if encoded[12:16] == b"VP8X" else (b"", b"", b"")
            turn = exif_orientation(exif[4:]) if chunk else 1
            found = Header((both >> bits & mask) + more, (both & mask) + more, None, turn)
    elif encoded.startswith(JP2_STARTS):
        found = _jp2_header(encoded)
    elif encoded.startswith(b"#?R"):
        found = _largest(tuple(map(int, size)) for size in HDR_SIZE.findall(encoded))
    else:
        try:
            with opened(encoded) as image:
                exif = encoded if encoded.startswith(TIFF_STARTS) else image.info.get("exif", b"")  # AVIF's
                found = Header(image.height, image.width, None, exif_orientation(exif))
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
    """Reads the first EXIF data and the first frame before the pixels: no thumbnail in a segment before it."""
    place, exif = len(JPEG_START), b""
    while match := MARKER.search(encoded, place):
        marker, parameters = match[1][0], match[2]
        if marker == FIRST_PIXELS or len(parameters) < 2:
            return None
        if marker in FRAMES:
            if len(parameters) < 8:
                return None
            turn = exif_orientation(exif) if exif else 1
            return Header._make((*struct.unpack(">xxxHHB", parameters), turn))
        place = match.start() + 2 + (0 if marker in WITHOUT_LENGTH else int.from_bytes(parameters[:2], "big"))
        if marker == APP1 and parameters[2:] == EXIF_START:
            exif = exif or encoded[match.start() + 4 : place]
    return None


def _scans(encoded: bytes) -> int:
    """Returns how many scans a JPEG has at most."""
    count = encoded.count(bytes([0xFF, FIRST_PIXELS]))
    if count <= FEW_SCANS:
        return count
    place, count = len(JPEG_START), 0  # without those of thumbnails, and what follows the image
    while (match := MARKER.search(encoded, place)) and match[1][0] != END:
        count += match[1][0] == FIRST_PIXELS
        place = match.start() + 2 + (0 if match[1][0] in WITHOUT_LENGTH else int.from_bytes(match[2][:2], "big"))
    return count


def _jp2_header(encoded: bytes) -> Header | None:
    """Reads the size of a JPEG 2000. Raises ValueError if it is coded in more parts than OpenJPEG has memory for."""
    places = [match.end() for match in re.finditer(JP2_STARTS[1], encoded) if match.end() + 38 <= len(encoded)]
    sizes = [struct.unpack_from(">4x8IH", encoded, place) for place in places]
    for right, bottom, _, _, width, height, left, top, components in sizes:
        tiles = _parts(right - left, max(width, 1)) * _parts(bottom - top, max(height, 1))
        if tiles > MOST_TILES or components > MOST_COMPONENTS:
            raise ValueError(f"has {tiles:,} tiles and {components:,} components: save it again")
    found = _largest((bottom - top, right - left) for right, bottom, left, top, *_ in sizes)
    if found is None:
        return None
    for match in CODING.finditer(encoded):
        length, has_precincts, layers = match[1] or match[4], (match[2] or match[5])[0] & 1, match[3] or b""
        levels, width, height = match[7][0], match[8][0] + 2, match[9][0] + 2
        precincts = match[10][: levels + 1] if has_precincts else b""
        if int.from_bytes(length, "big") != (12 if match[1] else 9) + len(precincts):  # the two bytes are others
            continue
        blocks = _parts(found.width, 1 << width) * _parts(found.height, 1 << height)
        number = sum(
            _parts(found.width, 1 << level + (size & 15)) * _parts(found.height, 1 << level + (size >> 4))
            for level, size in enumerate(reversed(precincts))
        )
        if int.from_bytes(layers, "big") > MOST_LAYERS or blocks > MOST_BLOCKS or number > MOST_PRECINCTS:
            raise ValueError("is coded in more layers, or in smaller parts, than is usual: save it again")
    return found


def _parts(length: int, of: int) -> int:
    return -(-length // of)


def _largest(sizes: Iterable[tuple]) -> Header | None:
    """Returns the largest (height, width): comments and boxes before the true one may name any other."""
    found = [Header(*size) for size in sizes]
    return max(found, key=lambda each: each.pixels) if found else None


def too_large(encoded: bytes) -> ValueError:
    """Returns the error for an image with too many pixels."""
    return ValueError(f"is larger than OPENCV_IO_MAX_IMAGE_PIXELS allows ({len(encoded)} bytes)")


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
