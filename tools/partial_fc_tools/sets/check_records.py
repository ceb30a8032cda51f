"""Reads every record, for `check`: in chunks in the order of the file, by several processes.

Shapes: n records of a chunk.
"""

import os
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from partial_fc.data.recordio.format import HEADER, unpack
from partial_fc.data.recordio.scanner import BrokenRecordError, Extent, locate_record, read_payload
from partial_fc.data.transforms import decode_rgb
from partial_fc.utils.decoder_messages import DecoderMessages
from partial_fc.utils.text import plural

from .check_index import FILE, IMAGE, INDEX, Problem, at

RANGE_BYTES = HEADER.size + 8  # payload of an identity record or of record 0: a header and two labels, no image
UNKNOWN = -1  # label of a record that is no image, or whose identity is unknown
CHUNK = 256  # records of a task: some 50 ms of decoding


class Chunk(NamedTuple):
    """Records in the order of the file."""

    # keys, offsets: (n,) int64
    keys: np.ndarray
    offsets: np.ndarray
    labels: np.ndarray  # (n,) int64, of the images' identities, or UNKNOWN
    stop: int  # offset of the next record


def read_chunk(rec_path: str, image_size: tuple | None, chunk: Chunk) -> list[Problem]:
    """Returns the problems of the records of a chunk; `image_size` is (H, W), or None to not decode images."""
    followers = [*chunk.offsets[1:].tolist(), chunk.stop]
    records = zip(chunk.keys.tolist(), chunk.offsets.tolist(), chunk.labels.tolist(), followers)
    with open(rec_path, "rb") as file, DecoderMessages() as messages:
        reader = ChunkReader(file.fileno(), image_size, messages)
        return [problem for record in records for problem in reader.problems(*record)]


class ChunkReader:
    """Reads records of an open file, even if others are damaged."""

    def __init__(self, fd: int, image_size: tuple | None, messages: DecoderMessages):
        self.fd, self.image_size, self.messages = fd, image_size, messages
        self.size = os.fstat(fd).st_size

    def problems(self, key: int, offset: int, label: int, follower: int) -> Iterator[Problem]:
        """Yields what is wrong with the record at `offset`, and with the bytes between its end and `follower`."""
        try:
            extent = locate_record(self.fd, offset, self.size)
            for part, what in self.content_problems(extent, label):
                yield Problem(part, at(key, offset, what))
        except BrokenRecordError as error:
            yield Problem(FILE, at(key, offset, str(error)))
        except OSError as error:
            yield Problem(FILE, at(key, offset, f"cannot be read ({error.strerror})"))
        else:
            if extent.end < follower:
                yield gap_problem(self.fd, extent.end, follower)
            elif extent.end > follower > offset:
                what = f"extends to offset {extent.end}, into the record that the index has at offset {follower}"
                yield Problem(FILE, at(key, offset, what))

    def content_problems(self, extent: Extent, label: int) -> Iterator[tuple[str, str]]:
        """Yields (part, message) of what is wrong with the header and the image of a record."""
        record = read_start(self.fd, extent) if self.image_size is None else read_payload(self.fd, extent)
        try:
            header, image = unpack(record)
        except ValueError as error:
            yield FILE, f"has no image header: {error}"
            return
        if header.flag == 2 and extent.length == RANGE_BYTES:
            return
        stated = header.class_label
        if label != UNKNOWN and stated != np.float32(label):
            yield IMAGE, f"has label {stated:g} in its header, but is in the range of identity {label}"
        if extent.length == HEADER.size + 4 * header.flag:
            yield IMAGE, "contains no image"
        elif self.image_size is not None:
            try:
                self.messages.checked(partial(decode_rgb, image, self.image_size, only_color=True))
            except ValueError as error:
                yield IMAGE, str(error)


def read_start(fd: int, extent: Extent) -> bytes:
    """Reads enough of a record's payload for its header and labels."""
    start, length = extent.pieces[0]
    head = os.pread(fd, min(length, RANGE_BYTES), start)
    flag = int.from_bytes(head[:4], "little")
    if len(extent.pieces) > 1 or HEADER.size + 4 * flag > len(head):
        return read_payload(fd, extent)
    return head


def gap_problem(fd: int, start: int, stop: int) -> Problem:
    """Describes the bytes [start, stop), between the records that the index lists."""
    count, end, rest = 0, start, ""
    try:
        while end < stop:
            count, end = count + 1, locate_record(fd, end, stop).end
    except BrokenRecordError as error:
        rest = f"{stop - end} bytes from offset {end} on that are not a record ({error})"
    unlisted = f"{plural(count, 'record')} that the index does not list" if count or not rest else ""
    return Problem(INDEX, f"offset {start} to {stop}: {', then '.join(filter(None, (unlisted, rest)))}")
