"""Reads the header of a JPEG: size, channels, and the EXIF orientation.

ITU-R T.81, annex B, for the segments; the EXIF segment holds a TIFF directory (CIPA DC-008, 4.6).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

UPRIGHT = 1  # EXIF orientation of an image that is stored as it is displayed
ORIENTATION = 0x0112
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # markers of a frame
COLOR_FRAME = b"\xff\xc0\x00\x11\x08"  # of a baseline JPEG of three channels and 8 bits: marker, length, precision
END_OF_HEADERS = (0xDA, 0xD9)


class JpegHeader(NamedTuple):
    """Height and width in pixels as stored, the number of channels, and the EXIF orientation 1 .. 8."""

    height: int
    width: int
    channels: int
    orientation: int


def read_jpeg_header(data: bytes) -> JpegHeader | None:
    """Reads the header of a JPEG, None if it cannot be read."""
    frame: tuple | None = None
    orientation = UPRIGHT
    for marker, start, stop in segments(data):
        if marker in FRAMES and stop - start >= 6:
            frame = struct.unpack_from(">HHB", data, start + 1)
        elif marker == 0xE1 and data.startswith(b"Exif\0\0", start, stop):
            orientation = exif_orientation(data[start + 6 : stop])
    return None if frame is None else JpegHeader._make((*frame, orientation))


def channels_of_jpeg(data: bytes) -> int | None:
    """Reads the number of channels only, which is faster."""
    if COLOR_FRAME in data:  # parsing the segments in Python takes ten times as long
        return 3
    header = read_jpeg_header(data)
    return None if header is None else header.channels


def segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yields (marker, start, stop) of the content of each segment before the pixels."""
    place = 2
    while place + 4 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF:  # a fill byte
            place += 1
            continue
        if marker in END_OF_HEADERS:
            return
        length = int.from_bytes(data[place + 2 : place + 4], "big")
        yield marker, place + 4, min(place + 2 + length, len(data))
        place += 2 + max(length, 2)


def exif_orientation(tiff: bytes) -> int:
    """Reads the orientation from the first TIFF directory, UPRIGHT if it has none."""
    order = "<" if tiff[:2] == b"II" else ">"
    try:
        (start,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, start)
        for entry in range(start + 2, start + 2 + 12 * count, 12):
            tag, _, _, value = struct.unpack_from(order + "HHIH", tiff, entry)
            if tag == ORIENTATION:
                return value if 1 <= value <= 8 else UPRIGHT
    except struct.error:  # truncated
        pass
    return UPRIGHT
