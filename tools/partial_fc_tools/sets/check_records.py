"""Reads every record for `check`: in chunks, in the order of the file, by several processes.

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

from .check_index import FILE, IMAGE, INDEX, Problem, record_problem

RANGE_BYTES = HEADER.size + 8  # payload of an identity record or of record 0: a header and two labels, no image
UNKNOWN = -1  # label of a record without an image, or of an unknown identity
CHUNK = 256  # records of a task: about 50 ms of decoding


class Chunk(NamedTuple):
    """Records in the order of the file."""

    keys: np.ndarray  # (n,) int64
    offsets: np.ndarray  # (n,) int64
    labels: np.ndarray  # (n,) int64, of the images' identities, or UNKNOWN
    stop: int  # offset of the record after the chunk


def read_chunk(rec_path: str, image_size: tuple | None, chunk: Chunk) -> list[Problem]:
    """Returns the problems of the records of a chunk; with ``image_size`` (H, W), also decodes the images."""
    followers = [*chunk.offsets[1:].tolist(), chunk.stop]
    records = zip(chunk.keys.tolist(), chunk.offsets.tolist(), chunk.labels.tolist(), followers)
    with open(rec_path, "rb") as file, DecoderMessages() as messages:
        fd = file.fileno()
        return [problem for record in records for problem in record_problems(fd, image_size, messages, *record)]


def record_problems(
    fd: int, image_size: tuple | None, messages: DecoderMessages, key: int, offset: int, label: int, follower: int
) -> Iterator[Problem]:
    """Yields the problems of the record at `offset`, and of the bytes between its end and the offset `follower`."""
    problem = partial(record_problem, key, offset)
    try:
        extent = locate_record(fd, offset, os.fstat(fd).st_size)
        record = read_start(fd, extent) if image_size is None else read_payload(fd, extent)
    except BrokenRecordError as error:
        yield problem(FILE, str(error))
        return
    except OSError as error:
        yield problem(FILE, f"cannot be read ({error.strerror})")
        return
    try:
        header, image = unpack(record)
        if not (header.flag == 2 and extent.length == RANGE_BYTES):
            stated = header.class_label
            if label != UNKNOWN and stated != np.float32(label):
                yield problem(IMAGE, f"has label {stated:g} in its header, but is in the range of identity {label}")
            if extent.length == HEADER.size + 4 * header.flag:
                yield problem(IMAGE, "contains no image")
            elif image_size is not None:
                try:
                    messages.checked(partial(decode_rgb, image, image_size, only_color=True))
                except ValueError as error:
                    yield problem(IMAGE, str(error))
    except ValueError as error:
        yield problem(FILE, f"has no image header: {error}")
    if extent.end < follower:
        yield gap_problem(fd, extent.end, follower)
    elif extent.end > follower > offset:
        what = f"extends to offset {extent.end}, into the record that the index has at offset {follower}"
        yield problem(FILE, what)


def read_start(fd: int, extent: Extent) -> bytes:
    """Reads enough of a record's payload for its header and labels."""
    start, length = extent.pieces[0]
    head = os.pread(fd, min(length, RANGE_BYTES), start)
    flag = int.from_bytes(head[:4], "little")
    if len(extent.pieces) > 1 or HEADER.size + 4 * flag > len(head):
        return read_payload(fd, extent)
    return head


def gap_problem(fd: int, start: int, stop: int) -> Problem:
    """Describes the bytes [start, stop), which no record of the index covers."""
    count, end, rest = 0, start, ""
    try:
        while end < stop:
            count, end = count + 1, locate_record(fd, end, stop).end
    except BrokenRecordError as error:
        rest = f"{stop - end} bytes from offset {end} on that are not a record ({error})"
    unlisted = f"{plural(count, 'record')} that the index does not list" if count or not rest else ""
    return Problem(INDEX, f"offset {start} to {stop}: {', then '.join(filter(None, (unlisted, rest)))}")
