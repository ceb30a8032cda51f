"""Curves for TensorBoard: a file of events, each a protocol buffer between its length and checksums (TFRecord)."""

from __future__ import annotations

import os
import secrets
import socket
import struct
import sys
import time

from partial_fc.utils.streams import LastingFile
from partial_fc.utils.text import printable

_VERSION = b"brain.Event:2"


def _crc32c_table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [number >> 1 ^ (0x82F63B78 if number & 1 else 0) for number in table]
    return table


_TABLE = _crc32c_table()


class EventFile:
    """A new file of events in a folder, which it creates. On a disk that is full the curves end; the training goes on.

    Raises:
        OSError: It cannot be created.
    """

    def __init__(self, folder: str):
        os.makedirs(folder, exist_ok=True)
        name = f"events.out.tfevents.{time.time():010.0f}.{socket.gethostname()}.{secrets.token_hex(4)}"
        path = os.path.join(folder, name)
        self._file = LastingFile(path, "xb", lambda error: warn_unwritable(path, error))
        self._write(b"\x1a" + _sized(_VERSION))

    def add_scalar(self, tag: str, value: float, num_update: int) -> None:
        """Writes one value of a curve."""
        scalar = b"\x0a" + _sized(tag.encode()) + b"\x15" + struct.pack("<f", value)
        self._write(b"\x10" + _varint(num_update) + b"\x2a" + _sized(b"\x0a" + _sized(scalar)))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, event: bytes) -> None:
        event = b"\x09" + struct.pack("<d", time.time()) + event
        length = struct.pack("<Q", len(event))
        record = length + _masked_crc(length) + event + _masked_crc(event)
        while record and not self._file.failed:  # no reader goes on after a record that is cut off
            record = record[self._file.write(record) :]


def warn_unwritable(path: str, error: OSError) -> None:
    """Reports on standard error that the training goes on without this file."""
    text = f"warning: cannot write {path} ({error.strerror}): the training goes on without it"
    print(printable(text), file=sys.stderr, flush=True)


def _varint(number: int) -> bytes:
    content = bytearray()
    while number > 0x7F:
        content.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*content, number])


def _sized(content: bytes) -> bytes:
    return _varint(len(content)) + content


def _masked_crc(content: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
