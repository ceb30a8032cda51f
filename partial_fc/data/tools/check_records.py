"""The part of `check` that reads every record: in chunks that follow the file, for several processes.

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

BROKEN, IMAGE, RANGE = range(3)  # kinds of records
RANGE_BYTES = HEADER.size + 8  # a range record's payload: a header and two labels, no image
# An identity record, or record 0: its own key, two float labels, and the integers beside them.
RANGES = np.dtype([("key", "<i8"), ("labels", "<f4", (2,)), ("id", "<u8"), ("id2", "<u8")])
CHUNK = 256  # records a worker is handed at once: some 50 ms of decoding


class Context(NamedTuple):
    """What a worker must know of the set: `image_size` (H, W), None not to decode."""

    rec_path: str
    image_size: tuple | None


class Task(NamedTuple):
    """Records in the order of the file: `rows` of the index, keys and offsets, (n,) each; `stop`: what follows them."""

    rows: np.ndarray
    keys: np.ndarray
    offsets: np.ndarray
    stop: int


class Found(NamedTuple):
    """`kinds` (n,) uint8; `labels` (n,) float32, of images; `other_id` (n,) bool: the header's id is not the key;
    `ranges`: RANGES records as tuples; `problems`: (place, what); `gaps`: bytes [start, stop) that no record covers."""

    kinds: np.ndarray
    labels: np.ndarray
    other_id: np.ndarray
    ranges: list[tuple]
    problems: list[tuple[int, str]]
    gaps: list[tuple[int, int]]


def look_at_chunk(context: Context, task: Task) -> Found:
    """What a worker does with a chunk."""
    count = len(task.keys)
    found = Found(np.zeros(count, np.uint8), np.full(count, np.nan, np.float32), np.zeros(count, bool), [], [], [])
    fd = os.open(context.rec_path, os.O_RDONLY)
    try:
        with DecoderMessages() as messages:
            Look(fd, context, task, found, messages).at_all()
    finally:
        os.close(fd)
    return found


class Look:
    """One pass over the records of a task in the open file; it fills `found`."""

    def __init__(self, fd: int, context: Context, task: Task, found: Found, messages: DecoderMessages):
        self.fd, self.context, self.task, self.found, self.messages = fd, context, task, found, messages

    def at_all(self) -> None:
        """Every record, whatever is wrong with those before."""
        size = os.fstat(self.fd).st_size
        followers = [*self.task.offsets[1:].tolist(), self.task.stop]
        for place, (offset, follower) in enumerate(zip(self.task.offsets.tolist(), followers)):
            try:
                extent = locate_record(self.fd, offset, size)
                self.at_record(extent, place)
            except BrokenRecordError as error:
                self.add(place, str(error))
            except OSError as error:
                self.add(place, f"cannot be read ({error.strerror})")
            else:
                self.at_neighbour(extent, follower, place)

    def add(self, place: int, what: str) -> None:
        """Note what is wrong with a record."""
        self.found.problems.append((place, what))

    def at_neighbour(self, extent: Extent, follower: int, place: int) -> None:
        """The record should end where the next one begins."""
        if extent.end < follower:
            self.found.gaps.append((extent.end, follower))
        elif extent.end > follower > extent.offset:
            self.add(place, f"goes on to offset {extent.end}, into the record that the index has at offset {follower}")

    def at_record(self, extent: Extent, place: int) -> None:
        """What the record holds, and its image."""
        size, key = self.context.image_size, int(self.task.keys[place])
        record = read_start(self.fd, extent) if size is None else read_payload(self.fd, extent)
        try:
            header, image = unpack(record)
        except ValueError as error:
            return self.add(place, f"has no image header: {error}")
        labels = np.ravel(header.label).tolist()
        if header.flag == 2 and extent.length == RANGE_BYTES:
            self.found.kinds[place] = RANGE
            self.found.ranges.append((key, tuple(labels), header.id, header.id2))
            return None
        self.found.kinds[place] = IMAGE
        self.found.labels[place] = labels[0]
        self.found.other_id[place] = header.id != key
        if extent.length == HEADER.size + 4 * header.flag:
            return self.add(place, "holds no image")
        what = None if size is None else self.wrong_image(image, size)
        return None if what is None else self.add(place, what)

    def wrong_image(self, image: bytes, image_size: tuple) -> str | None:
        """Why an encoded image is not a sound one of (H, W, 3), None if it is."""
        channels = color_channels(image)
        if channels is not None and channels != 3:
            return f"has {plural(channels, 'channel')} instead of 3"
        self.messages.damage()  # what is left of an image before, which failed
        try:
            decode_rgb(image, image_size)
        except ValueError as error:
            return str(error)
        except cv2.error:  # of sizes that cannot be
            return f"cannot be decoded ({len(image)} bytes)"
        damage = self.messages.damage()
        return None if damage is None else f"is damaged: {damage}"


def read_start(fd: int, extent: Extent) -> bytes:
    """Enough of a record's payload for its header and labels."""
    start, length = extent.pieces[0]
    head = os.pread(fd, min(length, RANGE_BYTES), start)
    flag = int.from_bytes(head[:4], "little")
    if len(extent.pieces) > 1 or HEADER.size + 4 * flag > len(head):
        return read_payload(fd, extent)
    return head


def look_at_gap(rec_path: str, start: int, stop: int) -> str:
    """What lies in the bytes [start, stop), between the records that the index lists."""
    fd = os.open(rec_path, os.O_RDONLY)
    count, end = 0, start
    try:
        for extent in walk_records(fd, start, stop):
            count, end = count + 1, extent.end
    except BrokenRecordError as error:
        what = f"{stop - end} bytes from offset {end} on that are no record ({error})"
        return f"{count} records that the index does not list, then {what}" if count else what
    finally:
        os.close(fd)
    return f"{plural(count, 'record')} that the index does not list"
