"""MXNet's RecordIO files (`.rec` + `.idx`), read and written without MXNet.

Layout of a `.rec` file (dmlc-core, recordio.h): a record is a little-endian magic word, a length word whose top three
bits are a continue flag, the payload, and zero bytes up to the next multiple of 4. So that readers can find records by
scanning for the magic word, a payload that contains it at a multiple of 4 is split there, and the word is left out. The
flag is 0 for a complete record, 1 for a first, 2 for a middle, and 3 for a last part.

The `.idx` file is text, one line `key<TAB>offset` per record. The payload of an image record starts with a 24-byte
header (flag, label, id, id2) and, if flag > 0, `flag` float32 labels.

Shapes: n records.
"""

from __future__ import annotations

import os
import struct
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from partial_fc.utils.atomic_io import replacing

MAGIC = 0xCED7230A
MAGIC_BYTES = struct.pack("<I", MAGIC)
LENGTH_BITS = 29
MAX_PART = (1 << LENGTH_BITS) - 1
WHOLE, FIRST, MIDDLE, LAST = range(4)  # the continue flags
WORDS = struct.Struct("<II")  # magic, flag and length
HEADER = struct.Struct("<IfQQ")  # flag, label, id, id2
# The first bytes of a record in the file: two words, the header, and two labels, which are image bytes if flag is 0.
HEAD = np.dtype(
    [
        ("magic", "<u4"),
        ("word", "<u4"),
        ("flag", "<u4"),
        ("label", "<f4"),
        ("id", "<u8"),
        ("id2", "<u8"),
        ("labels", "<f4", (2,)),
    ]
)


class RecordHeader(NamedTuple):
    """Header of an image record: `label` is a float, or float32 (flag,) if flag > 0; id and id2 are uint64."""

    flag: int
    label: float | np.ndarray
    id: int
    id2: int

    @property
    def class_label(self) -> float:
        """The label; the first label if there are several."""
        return float(self.label) if self.flag == 0 else float(np.ravel(self.label)[0])


def pack(header: RecordHeader, payload: bytes) -> bytes:
    """Returns the bytes of a record. As in MXNet, `flag` is 0 for a single label, otherwise the length of the array."""
    if np.ndim(header.label) == 0:
        return HEADER.pack(0, float(header.label), header.id, header.id2) + payload
    labels = np.ascontiguousarray(header.label, dtype="<f4")
    return HEADER.pack(labels.size, 0.0, header.id, header.id2) + labels.tobytes() + payload


def unpack(record: bytes) -> tuple[RecordHeader, bytes]:
    """Returns the header and the payload of a record. Raises ValueError if it is too short."""
    if len(record) < HEADER.size:
        raise ValueError(f"an image record has {len(record)} bytes, expected at least {HEADER.size}")
    flag, label, ident, ident2 = HEADER.unpack_from(record)
    if flag == 0:
        return RecordHeader(0, label, ident, ident2), record[HEADER.size :]
    end = HEADER.size + 4 * flag
    if len(record) < end:
        raise ValueError(f"the header has {flag} labels, but the record has only {len(record)} bytes")
    labels = np.frombuffer(record, "<f4", flag, HEADER.size).astype(np.float32)
    return RecordHeader(flag, labels, ident, ident2), record[end:]


class RecordWriter:
    """Writes a `.rec` and its `.idx`, which appear when the `with` block ends without an exception."""

    def __init__(self, rec_path: str | os.PathLike, idx_path: str | os.PathLike):
        self.rec_path, self.idx_path = os.fspath(rec_path), os.fspath(idx_path)
        self._files = ExitStack()
        # An interrupted run must not leave a truncated file that looks like a data set.
        self._idx, self._rec = (self._files.enter_context(replacing(path)) for path in (self.idx_path, self.rec_path))
        self._files.callback(self._idx.flush)  # before the .rec appears
        self._offset = 0

    def write(self, key: int, payload: bytes) -> None:
        """Appends one record (any bytes) under `key`."""
        self._idx.write(b"%d\t%d\n" % (key, self._offset))
        ends = [len(payload)]
        if MAGIC_BYTES in payload:
            ends = [*4 * np.flatnonzero(np.frombuffer(payload, "<u4", len(payload) // 4) == MAGIC), *ends]
        start = 0
        for number, end in enumerate(ends):
            piece = payload[start:end]
            start = end + len(MAGIC_BYTES)
            if len(piece) > MAX_PART:
                raise ValueError(
                    f"{self.rec_path}: record {key} has {len(piece)} bytes, RecordIO allows at most {MAX_PART}: "
                    "shorten it"
                )
            flag = WHOLE if len(ends) == 1 else FIRST + (number > 0) + (number == len(ends) - 1)
            padding = -len(piece) % 4
            self._rec.write(WORDS.pack(MAGIC, flag << LENGTH_BITS | len(piece)) + piece + b"\0" * padding)
            self._offset += WORDS.size + len(piece) + padding

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, kind, value, traceback) -> None:
        self._files.__exit__(kind, value, traceback)


def require_file(path: str, meaning: str) -> int:
    """Returns the size of a file. Raises FileNotFoundError if it is missing, ValueError if it is empty."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path} ({meaning}) does not exist: check the data set's folder or download it again")
    size = os.path.getsize(path)
    if size == 0:
        raise ValueError(f"{path} ({meaning}) is empty: copy or download it again")
    return size


def holds_range(heads: np.ndarray) -> np.ndarray:
    """Returns (n,) bool, whether a record has two labels and no image, as identity records have."""
    return (heads["flag"] == 2) & (heads["word"] & np.uint32(MAX_PART) == HEADER.size + 8)


def first_labels(heads: np.ndarray) -> np.ndarray:
    """Returns (n,) float32, the labels in the headers; the first label if a header has several."""
    return np.where(heads["flag"] > 0, heads["labels"][:, 0], heads["label"])
