"""Sizes of the frames in an AVIF, which neither Pillow nor libavif reports before decoding.

Frames can be larger than the size in the file's header, to which libavif scales them after decoding. The sequence
header before a frame bounds its size (AV1, 5.5 and 5.9.5). Frames are stored in items, which are byte ranges that the
box iloc lists (ISO/IEC 14496-12, 8.11.3).
"""

from collections.abc import Iterator

SEQUENCE_HEADER = 1  # type of an OBU (open bitstream unit), of which items consist
MAX_PARTS = 10_000  # items plus extents of a file; also OBUs of an item
MAX_HEADER = 400  # bytes of a sequence header up to the size


def is_boxes(encoded: bytes) -> bool:
    """Whether a file consists of boxes like an AVIF, regardless of its brands."""
    return encoded[4:8] == b"ftyp"


def without_tracks(encoded: bytes) -> bytes:
    """Returns the file without the frames of an animation; the still image remains."""
    content = bytearray(encoded)
    for kind, start, end in _boxes(encoded, 0, len(encoded)):
        if kind == b"ftyp":
            content[start:end] = content[start:end].replace(b"avis", b"avif")
        elif kind == b"moov":
            position = encoded.rindex(kind, 0, start)
            content[position : position + 4] = b"free"
    return bytes(content)


def coded_pixels(encoded: bytes) -> int:
    """Returns an upper bound of the number of pixels in the frames of all items.

    Raises:
        ValueError: the file is damaged, or has a layout that encoders do not write.
    """
    total = 0
    for kind, start, end in _boxes(encoded, 0, len(encoded)):
        if kind == b"mini":
            raise ValueError("cannot be decoded: it has a compact header, which is not supported")
        if kind != b"meta":
            continue
        inner = list(_boxes(encoded, start + 4, end))
        item_data = next((encoded[start:end] for kind, start, end in inner if kind == b"idat"), b"")
        for kind, start, end in inner:
            if kind == b"iloc":
                total += sum(map(_frame_pixels, _items(encoded, item_data, _Reader(encoded[start:end]))))
    return total


def _boxes(data: bytes, position: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yields the kind of each box, and the start and the end of its content."""
    while position + 8 <= end:
        size, kind = int.from_bytes(data[position : position + 4], "big"), data[position + 4 : position + 8]
        start = position + 8
        if size == 1:
            size, start = int.from_bytes(data[start : start + 8], "big"), start + 8
        box_end = position + size if size else end
        start += 16 * (kind == b"uuid")
        if not start <= box_end <= end:
            raise ValueError("cannot be decoded: it has a box that ends outside of it")
        yield kind, start, box_end
        position = box_end


class _Reader:
    """Reads big-endian integers of any number of bits."""

    def __init__(self, data: bytes):
        self._data, self._position = data, 0

    def bits(self, count: int) -> int:
        """Returns the next integer. Raises ValueError at the end."""
        first, self._position = self._position // 8, self._position + count
        if self._position > 8 * len(self._data):
            raise ValueError("cannot be decoded: it has a header that is truncated")
        read = int.from_bytes(self._data[first : (self._position + 7) // 8], "big")
        return read >> -self._position % 8 & ((1 << count) - 1)

    def bytes(self, count: int) -> int:
        """Returns the next integer of `count` bytes."""
        return self.bits(8 * count)


def _items(encoded: bytes, item_data: bytes, box: _Reader) -> Iterator[bytes]:
    """Yields the data of each item in the box iloc; `item_data` is the content of the box idat."""
    version = box.bytes(1)
    box.bytes(3)
    offset_size, length_size, base_size, index_size = (box.bits(4) for _ in range(4))
    wide = 4 if version == 2 else 2
    count, size = box.bytes(wide), 0
    if version > 2:
        raise ValueError("cannot be decoded: its header has an unknown version")
    for _ in range(count):
        box.bytes(wide)
        method = box.bytes(2) & 15 if version else 0
        if method > 1:
            raise ValueError("cannot be decoded: it has items within other items, which are not supported")
        box.bytes(2)
        base, source, parts = box.bytes(base_size), item_data if method else encoded, []
        extents = box.bytes(2)
        count += extents
        if count > MAX_PARTS:
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
    """Returns an upper bound of the number of pixels in the largest frame of an item; 0 if it is not an image."""
    position = largest = number = 0
    while position < len(item):
        number += 1
        if number > MAX_PARTS:
            raise ValueError("cannot be decoded: it has too many parts of an image")
        kind, has_extension, has_size = item[position] >> 3 & 15, item[position] >> 2 & 1, item[position] >> 1 & 1
        position += 1 + has_extension
        end = len(item)
        if has_size:  # in 7 bits per byte, low bits first
            length = 0
            for byte in range(8):
                if position >= len(item):
                    return largest
                length |= (item[position] & 127) << 7 * byte
                position += 1
                if item[position - 1] < 128:
                    break
            end = min(position + length, len(item))
        if kind == SEQUENCE_HEADER:
            largest = max(largest, _sequence_pixels(_Reader(item[position : min(end, position + MAX_HEADER)])))
        position = end
    return largest


def _sequence_pixels(header: _Reader) -> int:
    """Returns an upper bound of the number of pixels in a frame (AV1, 5.5.1)."""
    bits = header.bits
    bits(4)  # seq_profile, still_picture
    is_reduced = bits(1)  # if 1, frames have no size of their own
    if is_reduced:
        bits(5)  # seq_level_idx
    else:
        delay_bits = _decoder_delay_bits(header) if bits(1) else 0
        has_display_delay = bits(1)
        for _ in range(bits(5) + 1):  # operating points
            bits(12)  # operating_point_idc
            bits(bits(5) > 7)  # seq_level_idx, seq_tier
            if delay_bits and bits(1):
                bits(2 * delay_bits + 1)
            if has_display_delay and bits(1):
                bits(4)
    width_bits, height_bits = bits(4) + 1, bits(4) + 1
    width, height = bits(width_bits) + 1, bits(height_bits) + 1
    return width * height if is_reduced else 1 << width_bits + height_bits


def _decoder_delay_bits(header: _Reader) -> int:
    """Reads timing_info and decoder_model_info. Returns the length of a delay in bits; 0 without a decoder model."""
    bits = header.bits
    bits(64)
    if bits(1):  # num_ticks_per_picture, a variable-length code: n zeros, a one, n bits
        zeros = 0
        while not bits(1):
            zeros += 1
            if zeros == 32:
                raise ValueError("cannot be decoded: it has a time of more than 32 bits")
        bits(zeros)
    if not bits(1):
        return 0
    delay_bits = bits(5) + 1
    bits(42)
    return delay_bits
