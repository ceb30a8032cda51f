"""MXNet's RecordIO files (`.rec` + `.idx`), read and written without MXNet.

Layout of a `.rec` file (dmlc-core, recordio.h): a record is a little-endian magic word, a length word whose top three
bits are a continue flag, the payload, and zero bytes up to the next multiple of 4. A payload that holds the magic word
at a multiple of 4 is cut there (the magic itself is left out) so that a reader can find record starts by scanning:
flag 0 = whole record, 1 = first part, 2 = middle part, 3 = last part.

The `.idx` file is text, one line `key<TAB>offset` a record. An image record's payload starts with a 24-byte header
(flag, label, id, id2) and, where flag > 0, `flag` float32 labels.

Shapes: K records in the file.
"""

from __future__ import annotations

import os
import struct
import warnings
from typing import NamedTuple

import numpy as np

MAGIC = 0xCED7230A
MAGIC_BYTES = struct.pack("<I", MAGIC)
LENGTH_BITS = 29
MAX_PART = (1 << LENGTH_BITS) - 1
WORDS = struct.Struct("<II")  # magic, flag and length
HEADER = struct.Struct("<IfQQ")  # flag, label, id, id2
INDEX_CHUNK = 16 << 20  # bytes of .idx text parsed at once: bounds the memory of sets with 10^8 lines


class RecordHeader(NamedTuple):
    """Header of an image record: `label` is a float, or float32 (flag,) where flag > 0; id and id2 are uint64."""

    flag: int
    label: float | np.ndarray
    id: int
    id2: int


def pack(header: RecordHeader, payload: bytes) -> bytes:
    """The record's bytes: header, labels, payload. As in MXNet, `flag` follows from the label, whatever it says."""
    if np.ndim(header.label) == 0:
        return HEADER.pack(0, float(header.label), header.id, header.id2) + payload
    labels = np.ascontiguousarray(header.label, dtype="<f4")
    return HEADER.pack(labels.size, 0.0, header.id, header.id2) + labels.tobytes() + payload


def unpack(record: bytes) -> tuple[RecordHeader, bytes]:
    """Header and payload of a record made by `pack` or by `mxnet.recordio.pack`. Raises ValueError if too short."""
    if len(record) < HEADER.size:
        raise ValueError(f"an image record has at least {HEADER.size} bytes, this one has {len(record)}")
    flag, label, ident, ident2 = HEADER.unpack_from(record)
    if flag == 0:
        return RecordHeader(0, label, ident, ident2), record[HEADER.size :]
    end = HEADER.size + 4 * flag
    if len(record) < end:
        raise ValueError(f"the header announces {flag} labels, but the record has only {len(record)} bytes")
    labels = np.frombuffer(record, "<f4", flag, HEADER.size).astype(np.float32)
    return RecordHeader(flag, labels, ident, ident2), record[end:]


def split_at_magic(payload: bytes) -> list[bytes]:
    """The payload cut at every magic word that lies at a multiple of 4; one piece where there is none."""
    pieces, start, found = [], 0, payload.find(MAGIC_BYTES)
    while found >= 0:
        if found % 4 == 0:
            pieces.append(payload[start:found])
            start = found + 4
        found = payload.find(MAGIC_BYTES, found + 1)
    pieces.append(payload[start:])
    return pieces


class RecordWriter:
    """Writes `rec_path` and `idx_path`; both appear, complete, when the `with` block ends without an exception."""

    def __init__(self, rec_path: str | os.PathLike, idx_path: str | os.PathLike):
        self.rec_path, self.idx_path = os.fspath(rec_path), os.fspath(idx_path)
        # An interrupted run must not leave a short file that looks like a data set.
        self._rec = open(self.rec_path + ".part", "wb")  # noqa: SIM115
        self._idx = open(self.idx_path + ".part", "w", encoding="ascii", newline="\n")  # noqa: SIM115
        self._offset = 0

    def write(self, key: int, payload: bytes) -> None:
        """Append one record (any bytes) under `key`."""
        pieces = split_at_magic(payload)
        start = self._offset
        for number, piece in enumerate(pieces):
            self._write_part(key, piece, continue_flag(number, len(pieces)))
        self._idx.write(f"{int(key)}\t{start}\n")

    def _write_part(self, key: int, piece: bytes, flag: int) -> None:
        if len(piece) > MAX_PART:
            raise ValueError(
                f"{self.rec_path}: record {key} has {len(piece)} bytes, RecordIO holds at most {MAX_PART}; store less"
            )
        padding = -len(piece) % 4
        self._rec.write(WORDS.pack(MAGIC, flag << LENGTH_BITS | len(piece)) + piece + b"\0" * padding)
        self._offset += WORDS.size + len(piece) + padding

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, kind, value, traceback) -> None:
        self._rec.close()
        self._idx.close()
        for path in (self.rec_path, self.idx_path):
            if kind is None:
                os.replace(path + ".part", path)
            else:
                os.remove(path + ".part")


def continue_flag(number: int, pieces: int) -> int:
    """dmlc's flag of part `number` of `pieces`: 0 whole, 1 first, 2 middle, 3 last."""
    if pieces == 1:
        return 0
    if number == 0:
        return 1
    return 3 if number == pieces - 1 else 2


class RecordReader:
    """Random access by key. Safe in threads and after fork: `os.pread` shares no file position.

    `keys` (K,) int64 sorted, `offsets` (K,) int64 in the same order. The index costs 16 bytes a record, not a
    dictionary entry. Raises OSError or ValueError, naming the file and the mend, if a file is missing or empty or if
    the two do not belong together.
    """

    def __init__(self, rec_path: str | os.PathLike, idx_path: str | os.PathLike):
        self.rec_path, self.idx_path = os.fspath(rec_path), os.fspath(idx_path)
        self._size = require_file(self.rec_path, "the records")
        require_file(self.idx_path, "the index of the records")
        self.keys, self.offsets = read_index(self.idx_path)
        self._fd = os.open(self.rec_path, os.O_RDONLY)
        try:
            self._check_fit()
        except ValueError:
            self.close()
            raise

    def _check_fit(self) -> None:
        last = int(self.offsets.argmax())
        if self.offsets[last] + WORDS.size > self._size:
            raise ValueError(
                f"{self.idx_path}: key {self.keys[last]} is at offset {self.offsets[last]}, beyond the {self._size} "
                f"bytes of {self.rec_path}; the .rec is cut short or the .idx belongs to another one: copy both again"
            )
        for row in (int(self.offsets.argmin()), last):
            self._read_part(int(self.keys[row]), int(self.offsets[row]))

    def __len__(self) -> int:
        return len(self.keys)

    def offset(self, key: int) -> int:
        """Byte offset of the record. Raises KeyError for a key that is not in the index."""
        row = int(np.searchsorted(self.keys, key))
        if row == len(self.keys) or self.keys[row] != key:
            raise KeyError(f"{self.idx_path} has no key {key}")
        return int(self.offsets[row])

    def read(self, key: int) -> bytes:
        """The record's payload. Raises ValueError naming file, key and offset if the bytes there are no record."""
        start = self.offset(key)
        flag, piece, position = self._read_part(key, start)
        if flag == 0:
            return piece
        if flag != 1:
            raise self._broken(key, start, "holds the inside of a record, not its start")
        pieces = [piece]
        while flag != 3:
            flag, piece, position = self._read_part(key, position)
            if flag not in (2, 3):
                raise self._broken(key, start, "is a record whose last part is missing")
            pieces.append(piece)
        return MAGIC_BYTES.join(pieces)

    def _read_part(self, key: int, position: int) -> tuple[int, bytes, int]:
        """(continue flag, piece, offset of what follows) of the part at `position`."""
        words = os.pread(self._fd, WORDS.size, position)
        if len(words) < WORDS.size:
            raise self._broken(key, position, "is beyond the end of the file")
        magic, word = WORDS.unpack(words)
        if magic != MAGIC:
            raise self._broken(key, position, f"does not start with the magic word {MAGIC:#x}")
        length = word & MAX_PART
        piece = os.pread(self._fd, length, position + WORDS.size)
        if len(piece) < length:
            raise self._broken(key, position, f"ends after {len(piece)} of {length} bytes: the file is cut short")
        return word >> LENGTH_BITS, piece, position + WORDS.size + length + -length % 4

    def _broken(self, key: int, offset: int, what: str) -> ValueError:
        return ValueError(
            f"{self.rec_path}: key {key} at offset {offset} {what}; copy the .rec and its .idx again, they must "
            "belong together"
        )

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def require_file(path: str, meaning: str) -> int:
    """Size of the file in bytes. Raises FileNotFoundError if it is missing, ValueError if it is empty."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path} ({meaning}) is not there: check the data set's folder or download it again")
    size = os.path.getsize(path)
    if size == 0:
        raise ValueError(f"{path} ({meaning}) is empty: copy or download it again")
    return size


def read_index(idx_path: str) -> tuple[np.ndarray, np.ndarray]:
    """keys (K,) sorted and offsets (K,), int64. Raises ValueError if the text is no index or a key is there twice."""
    chunks = []
    with open(idx_path, "rb") as lines:
        while True:
            text = lines.read(INDEX_CHUNK)
            if not text:
                break
            chunks.append(parse_index(text + lines.readline(), idx_path))
    table = np.concatenate(chunks)
    keys, offsets = table[:, 0], table[:, 1]
    if np.any(keys[1:] <= keys[:-1]):
        order = np.argsort(keys, kind="stable")
        keys, offsets = keys[order], offsets[order]
        twice = np.flatnonzero(keys[1:] == keys[:-1])
        if len(twice):
            raise ValueError(f"{idx_path}: key {keys[twice[0]]} stands there twice; write the index again")
    return np.ascontiguousarray(keys), np.ascontiguousarray(offsets)


def parse_index(text: bytes, idx_path: str) -> np.ndarray:
    """(lines, 2) int64 of whole `key<TAB>offset` lines."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # older numpy only warns about text that is no number
            numbers = np.fromstring(text, dtype=np.int64, sep=" ")
    except (ValueError, DeprecationWarning):
        numbers = np.empty(0, np.int64)
    lines = len(text.splitlines())
    if len(numbers) != 2 * lines or lines == 0 or numbers.min() < 0:
        raise ValueError(f"{idx_path} is no RecordIO index: its lines must be 'key<TAB>offset'; copy it again")
    return numbers.reshape(-1, 2)
