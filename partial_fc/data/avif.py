"""Sizes of the frames in an AVIF, of which neither Pillow nor libavif tells before they are decoded.

The header of the file names the size of the image, to which libavif scales frames of another one. A frame is not larger
than the sequence header before it says (AV1, 5.5 and 5.9.5). What is decoded are items: bytes of the file that the box
iloc names (ISO/IEC 14496-12, 8.11.3).
"""

from collections.abc import Iterator

SEQUENCE_HEADER = 1  # type of an OBU, a part of an item
MOST = 10_000  # items of a file, parts of them, and OBUs of each
SHOWN = 400  # bytes of a sequence header that may precede the size


def is_boxes(encoded: bytes) -> bool:
    """Whether a file has the boxes of an AVIF, whatever its brands are."""
    return encoded[4:8] == b"ftyp"


def without_tracks(encoded: bytes) -> bytes:
    """Returns the file with its first image alone: of an animated one, its frames are ignored."""
    content = bytearray(encoded)
    for kind, start, end in _boxes(encoded, 0, len(encoded)):
        if kind == b"ftyp":
            content[start:end] = content[start:end].replace(b"avis", b"avif")
        elif kind == b"moov":
            place = encoded.rindex(kind, 0, start)
            content[place : place + 4] = b"free"
    return bytes(content)


def coded_pixels(encoded: bytes) -> int:
    """Returns how many pixels all frames of the items have at most.

    Raises:
        ValueError: The file is damaged, or its parts lie in another way than encoders write them.
    """
    total = 0
    for kind, start, end in _boxes(encoded, 0, len(encoded)):
        if kind == b"mini":
            raise ValueError("cannot be decoded: it has a short form of a header, which is not read")
        if kind != b"meta":
            continue
        inner = list(_boxes(encoded, start + 4, end))
        own = next((encoded[start:end] for kind, start, end in inner if kind == b"idat"), b"")
        for kind, start, end in inner:
            if kind == b"iloc":
                total += sum(map(_frame_pixels, _items(encoded, own, _Reader(encoded[start:end]))))
    return total


def _boxes(data: bytes, place: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yields the kind of each box, and start and end of its content."""
    while place + 8 <= end:
        size, kind, start = int.from_bytes(data[place : place + 4], "big"), data[place + 4 : place + 8], place + 8
        if size == 1:
            size, start = int.from_bytes(data[start : start + 8], "big"), start + 8
        after = place + size if size else end
        start += 16 * (kind == b"uuid")
        if not start <= after <= end:
            raise ValueError("cannot be decoded: it has a box that ends outside of it")
        yield kind, start, after
        place = after


class _Reader:
    """Reads numbers of some bits from bytes."""

    def __init__(self, data: bytes):
        self._data, self._place = data, 0

    def bits(self, count: int) -> int:
        """Returns the next number. Raises ValueError after the end."""
        first, self._place = self._place // 8, self._place + count
        if self._place > 8 * len(self._data):
            raise ValueError("cannot be decoded: it has a header that is truncated")
        read = int.from_bytes(self._data[first : (self._place + 7) // 8], "big")
        return read >> -self._place % 8 & ((1 << count) - 1)

    def bytes(self, count: int) -> int:
        """As `bits`, of a number of bytes."""
        return self.bits(8 * count)


def _items(encoded: bytes, own: bytes, box: _Reader) -> Iterator[bytes]:
    """Yields the data of each item in the box iloc; ``own`` is the content of the box idat."""
    version = box.bytes(1)
    box.bytes(3)
    offset_size, length_size, base_size, index_size = (box.bits(4) for _ in range(4))
    wide = 4 if version == 2 else 2
    count, size = box.bytes(wide), 0
    if version > 2:
        raise ValueError("cannot be decoded: it has a header of a later version")
    for _ in range(count):
        box.bytes(wide)
        method = box.bytes(2) & 15 if version else 0
        if method > 1:
            raise ValueError("cannot be decoded: it has items within other items, which are not read")
        box.bytes(2)
        base, source, parts = box.bytes(base_size), own if method else encoded, []
        extents = box.bytes(2)
        count += extents
        if count > MOST:
            raise ValueError("cannot be decoded: it has too many items")
        for _ in range(extents):
            box.bytes(index_size if version else 0)
            start, length = base + box.bytes(offset_size), box.bytes(length_size)
            size += length
            if start + length > len(source) or size > 2 * len(encoded):
                raise ValueError("cannot be decoded: it has an item that ends outside of it")
            parts.append(source[start : start + length])
        yield b"".join(parts)


def _frame_pixels(item: bytes) -> int:
    """Returns how many pixels the largest frame of an item has at most; 0 for other items than images."""
    place = largest = number = 0
    while place < len(item):
        number += 1
        if number > MOST:
            raise ValueError("cannot be decoded: it has too many parts of an image")
        kind, extended, sized = item[place] >> 3 & 15, item[place] >> 2 & 1, item[place] >> 1 & 1
        place += 1 + extended
        end = len(item)
        if sized:
            length = 0
            for byte in range(8):
                if place >= len(item):
                    return largest
                length |= (item[place] & 127) << 7 * byte
                place += 1
                if item[place - 1] < 128:
                    break
            end = min(place + length, len(item))
        if kind == SEQUENCE_HEADER:
            largest = max(largest, _sequence_pixels(_Reader(item[place : min(end, place + SHOWN)])))
        place = end
    return largest


def _sequence_pixels(header: _Reader) -> int:
    bits = header.bits
    bits(4)  # profile, still picture
    one_size = bits(1)  # reduced header: frames have no size of their own
    if one_size:
        bits(5)
    else:
        delay = _skip_timing(header) if bits(1) else 0
        has_display_delay = bits(1)
        for _ in range(bits(5) + 1):
            bits(12)
            bits(bits(5) > 7)
            if delay and bits(1):
                bits(2 * delay + 1)
            if has_display_delay and bits(1):
                bits(4)
    width_bits, height_bits = bits(4) + 1, bits(4) + 1
    width, height = bits(width_bits) + 1, bits(height_bits) + 1
    return width * height if one_size else 1 << width_bits + height_bits


def _skip_timing(header: _Reader) -> int:
    """Returns the bits of a delay, 0 without a model of the decoder."""
    bits = header.bits
    bits(64)
    if bits(1):  # a number of any length follows
        zeros = 0
        while not bits(1):
            zeros += 1
            if zeros == 32:
                raise ValueError("cannot be decoded: it has a time of more than 32 bits")
        bits(zeros)
    if not bits(1):
        return 0
    delay = bits(5) + 1
    bits(42)
    return delay
