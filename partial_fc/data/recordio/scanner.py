"""Reads records of a `.rec` file by offset, without its index.

See format.py for the layout of a record and its parts, and reader.py for reading by key.
"""

import os
from typing import NamedTuple

from .format import FIRST, LAST, LENGTH_BITS, MAGIC, MAGIC_BYTES, MAX_PART, MIDDLE, WHOLE, WORDS

MAX_PIECES = 1 << 16  # of a record; each magic word in an image adds one, and few images contain any

Piece = tuple[int, int]  # (offset, bytes) of a part's content


class BrokenRecordError(ValueError):
    """The bytes at `offset` are not a record. The message gives the reason, but not the file name."""

    def __init__(self, offset: int, what: str):
        super().__init__(what)
        self.offset = offset


class Extent(NamedTuple):
    """Where a record is: its `offset`, its `pieces`, and `end`, the offset after it."""

    offset: int
    pieces: list[Piece]
    end: int

    @property
    def length(self) -> int:
        """Bytes of the payload, including the magic words between its pieces."""
        return sum(length for _, length in self.pieces) + len(MAGIC_BYTES) * (len(self.pieces) - 1)


def locate_record(fd: int, offset: int, size: int) -> Extent:
    """Locates the parts of the record at `offset` in a file of `size` bytes, without reading their content.

    Raises:
        BrokenRecordError: there is no record, or it is truncated.
    """
    pieces: list[Piece] = []
    position, flag = offset, -1
    while flag not in (WHOLE, LAST):
        words = os.pread(fd, WORDS.size, position)
        if len(words) < WORDS.size:
            raise BrokenRecordError(offset, "is truncated by the end of the file")
        magic, word = WORDS.unpack(words)
        if magic != MAGIC:
            what = f"has a part at offset {position} that does" if position > offset else "does"
            raise BrokenRecordError(offset, f"{what} not start with the magic word {MAGIC:#x}")
        flag, length = word >> LENGTH_BITS, word & MAX_PART
        if flag not in ((MIDDLE, LAST) if pieces else (WHOLE, FIRST)):
            state = "has no last part" if pieces else "is inside a record, not at its start"
            raise BrokenRecordError(offset, state)
        if len(pieces) == MAX_PIECES:
            raise BrokenRecordError(offset, f"has more than {MAX_PIECES} parts")
        pieces.append((position + WORDS.size, length))
        position += WORDS.size + length + -length % 4
        if position > size:
            raise BrokenRecordError(offset, f"extends to offset {position}, beyond the end at {size}: it is truncated")
    return Extent(offset, pieces, position)


def read_payload(fd: int, extent: Extent) -> bytes:
    """Reads the payload of a record. Raises BrokenRecordError if the file has been truncated in the meantime."""
    pieces = [os.pread(fd, length, start) for start, length in extent.pieces]
    if any(len(piece) < length for piece, (_, length) in zip(pieces, extent.pieces)):
        raise BrokenRecordError(extent.offset, "could not be read completely")
    return MAGIC_BYTES.join(pieces)
