"""Reads every record, for `check`: in chunks in the order of the file, by several processes.

Shapes: n records of a chunk.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import cv2
import numpy as np

from partial_fc.data.recordio.format import HEADER, unpack
from partial_fc.data.recordio.scanner import BrokenRecordError, Extent, locate_record, read_payload, walk_records
from partial_fc.data.transforms import color_channels, decode_rgb
from partial_fc.utils.decoder_messages import DecoderMessages
from partial_fc.utils.text import plural

RANGE_BYTES = HEADER.size + 8  # payload of an identity record or of record 0: a header and two labels, no image
UNKNOWN = -1  # label of a record that is no image, or whose identity is unknown
CHUNK = 256  # records of a task: some 50 ms of decoding


class Context(NamedTuple):
    """The set, for a worker: `image_size` is (H, W), or None to not decode images."""

    rec_path: str
    image_size: tuple | None


class Task(NamedTuple):
    """Records in the order of the file.

    Attributes:
        keys, offsets: (n,) int64.
        labels: (n,) int64, of the images' identities, or UNKNOWN.
        stop: offset of the next record.
    """

    keys: np.ndarray
    offsets: np.ndarray
    labels: np.ndarray
    stop: int


class ChunkResult(NamedTuple):
    """What is wrong with the records of a chunk.

    Attributes:
        problems: (place in the chunk, whether the image is bad and not the record, message).
        gaps: bytes [start, stop) that no record covers.
    """

    problems: list[tuple[int, bool, str]]
    gaps: list[tuple[int, int]]


def read_chunk(context: Context, task: Task) -> ChunkResult:
    """Reads and checks the records of a chunk, in a worker."""
    result = ChunkResult([], [])
    fd = os.open(context.rec_path, os.O_RDONLY)
    try:
        with DecoderMessages() as messages:
            ChunkReader(fd, context, task, result, messages).read_all()
    finally:
        os.close(fd)
    return result


class ChunkReader:
    """Reads the records of a task from the open file and fills `result`."""

    def __init__(self, fd: int, context: Context, task: Task, result: ChunkResult, messages: DecoderMessages):
        self.fd, self.context, self.task, self.result, self.messages = fd, context, task, result, messages

    def read_all(self) -> None:
        """Reads every record, even if others are damaged."""
        size = os.fstat(self.fd).st_size
        followers = [*self.task.offsets[1:].tolist(), self.task.stop]
        for place, (offset, follower) in enumerate(zip(self.task.offsets.tolist(), followers)):
            try:
                extent = locate_record(self.fd, offset, size)
                self.read_record(extent, place)
            except BrokenRecordError as error:
                self.add(place, str(error))
            except OSError as error:
                self.add(place, f"cannot be read ({error.strerror})")
            else:
                self.check_end(extent, follower, place)

    def add(self, place: int, what: str, is_image: bool = False) -> None:
        """Adds a problem of a record, or of the image in it."""
        self.result.problems.append((place, is_image, what))

    def check_end(self, extent: Extent, follower: int, place: int) -> None:
        """Checks that the record ends where the next one begins."""
        if extent.end < follower:
            self.result.gaps.append((extent.end, follower))
        elif extent.end > follower > extent.offset:
            self.add(place, f"extends to offset {extent.end}, into the record that the index has at offset {follower}")

    def read_record(self, extent: Extent, place: int) -> None:
        """Reads a record and checks its image."""
        size, label = self.context.image_size, int(self.task.labels[place])
        record = read_start(self.fd, extent) if size is None else read_payload(self.fd, extent)
        try:
            header, image = unpack(record)
        except ValueError as error:
            return self.add(place, f"has no image header: {error}")
        if header.flag == 2 and extent.length == RANGE_BYTES:
            return None
        stated = header.class_label
        if label != UNKNOWN and stated != np.float32(label):
            self.add(place, f"has label {stated:g} in its header, but is in the range of identity {label}", True)
        if extent.length == HEADER.size + 4 * header.flag:
            return self.add(place, "contains no image", True)
        what = None if size is None else self.image_problem(image, size)
        return None if what is None else self.add(place, what, True)

    def image_problem(self, image: bytes, image_size: tuple) -> str | None:
        """Returns why an encoded image is not a valid one of (H, W, 3), None if it is."""
        channels = color_channels(image)
        if channels is not None and channels != 3:
            return f"has {plural(channels, 'channel')} instead of 3"
        self.messages.damage()  # discard warnings of an image before, which failed
        try:
            decode_rgb(image, image_size)
        except ValueError as error:
            return str(error)
        except cv2.error:  # the header has an impossible size
            return f"cannot be decoded ({len(image)} bytes)"
        damage = self.messages.damage()
        return None if damage is None else f"is damaged: {damage}"


def read_start(fd: int, extent: Extent) -> bytes:
    """Reads enough of a record's payload for its header and labels."""
    start, length = extent.pieces[0]
    head = os.pread(fd, min(length, RANGE_BYTES), start)
    flag = int.from_bytes(head[:4], "little")
    if len(extent.pieces) > 1 or HEADER.size + 4 * flag > len(head):
        return read_payload(fd, extent)
    return head


def describe_gap(rec_path: str, start: int, stop: int) -> str:
    """Describes the bytes [start, stop), between the records that the index lists."""
    fd = os.open(rec_path, os.O_RDONLY)
    count, end = 0, start
    try:
        for extent in walk_records(fd, start, stop):
            count, end = count + 1, extent.end
    except BrokenRecordError as error:
        what = f"{stop - end} bytes from offset {end} on that are not a record ({error})"
        return f"{plural(count, 'record')} that the index does not list, then {what}" if count else what
    finally:
        os.close(fd)
    return f"{plural(count, 'record')} that the index does not list"
