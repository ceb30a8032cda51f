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
import weakref
from typing import NamedTuple

import numpy as np

from partial_fc.record_index import open_index

MAGIC = 0xCED7230A
MAGIC_BYTES = struct.pack("<I", MAGIC)
LENGTH_BITS = 29
MAX_PART = (1 << LENGTH_BITS) - 1
WORDS = struct.Struct("<II")  # magic, flag and length
HEADER = struct.Struct("<IfQQ")  # flag, label, id, id2
SAMPLES = 64  # records looked at when a file is opened: under a second on a cold disk
MAX_GUESS = 1 << 20  # bytes; an extent beyond is no image, and may be what a wrong index says


class RecordHeader(NamedTuple):
    """Header of an image record: `label` is a float, or float32 (flag,) where flag > 0; id and id2 are uint64."""

    flag: int
    label: float | np.ndarray
    id: int
    id2: int

    @property
    def class_label(self) -> float:
        """The label, or the first of several."""
        return float(self.label) if self.flag == 0 else float(np.ravel(self.label)[0])


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

    `index` is the RecordIndex. Opening checks that the index reaches the end of the `.rec` and, at SAMPLES places,
    that records begin where it says. Raises OSError or ValueError, naming the file and the mend, if a file is missing
    or empty or if the two do not belong together.
    """

    def __init__(self, rec_path: str | os.PathLike, idx_path: str | os.PathLike):
        self.rec_path, self.idx_path = os.fspath(rec_path), os.fspath(idx_path)
        self._size = require_file(self.rec_path, "the records")
        require_file(self.idx_path, "the index of the records")
        self.index = open_index(self.idx_path, self._size)
        self._fd = os.open(self.rec_path, os.O_RDONLY)
        self._close = weakref.finalize(self, os.close, self._fd)
        try:
            self._check_fit()
        except ValueError:
            self.close()
            raise

    def _check_fit(self) -> None:
        rows = np.random.default_rng(0).integers(0, len(self.index), SAMPLES)
        for row in rows.tolist():
            self._read_words(row, int(self.index.offsets[row]))
        last = int(self.index.offsets.argmax())
        _, end = self._read_parts(last)
        if end != self._size:
            raise ValueError(
                f"{self.idx_path} ends with key {self.index.keys_at(last)}, whose record ends at byte {end}, but "
                f"{self.rec_path} has {self._size} bytes; lines are missing or the .idx belongs to another .rec: copy "
                "both again"
            )

    def __len__(self) -> int:
        return len(self.index)

    def row(self, key: int) -> int:
        """Row of the record in the index. Raises KeyError for a key that is not there."""
        row = self.index.row(key)
        if row < 0:
            raise KeyError(f"{self.idx_path} has no key {key}")
        return row

    def read(self, key: int) -> bytes:
        """The record's payload. Raises ValueError naming file, key and offset if the bytes there are no record."""
        return self.read_row(self.row(key))

    def read_row(self, row: int) -> bytes:
        """The payload of the record in that row of the index, otherwise as `read`."""
        start = int(self.index.offsets[row])
        # Where the next row's record follows this one, one call reads it all.
        extent = int(self.index.offsets[row + 1]) - start if row + 1 < len(self.index) else 0
        if WORDS.size < extent <= MAX_GUESS:
            data = self._pread(row, extent, start)
            if len(data) == extent:
                magic, word = WORDS.unpack_from(data)
                if magic == MAGIC and word <= extent - WORDS.size:  # continue flag 0: a whole record
                    return data[WORDS.size : WORDS.size + word]
        return self._read_parts(row)[0]

    def _read_parts(self, row: int) -> tuple[bytes, int]:
        """(payload, offset of what follows) of a record in any number of parts."""
        start = int(self.index.offsets[row])
        flag, piece, position = self._read_part(row, start)
        if flag == 0:
            return piece, position
        if flag != 1:
            raise self._broken(row, start, "holds the inside of a record, not its start")
        pieces = [piece]
        while flag != 3:
            flag, piece, position = self._read_part(row, position)
            if flag not in (2, 3):
                raise self._broken(row, start, "is a record whose last part is missing")
            pieces.append(piece)
        return MAGIC_BYTES.join(pieces), position

    def _read_part(self, row: int, position: int) -> tuple[int, bytes, int]:
        """(continue flag, piece, offset of what follows) of the part at `position`."""
        flag, length = self._read_words(row, position)
        piece = self._pread(row, length, position + WORDS.size)
        if len(piece) < length:
            raise self._broken(row, position, f"ends after {len(piece)} of {length} bytes: the file is cut short")
        return flag, piece, position + WORDS.size + length + -length % 4

    def _read_words(self, row: int, position: int) -> tuple[int, int]:
        """(continue flag, length) of the part at `position`."""
        words = self._pread(row, WORDS.size, position)
        if len(words) < WORDS.size:
            raise self._broken(row, position, "is beyond the end of the file")
        magic, word = WORDS.unpack(words)
        if magic != MAGIC:
            raise self._broken(row, position, f"does not start with the magic word {MAGIC:#x}")
        return word >> LENGTH_BITS, word & MAX_PART

    def _pread(self, row: int, length: int, position: int) -> bytes:
        try:
            return os.pread(self._fd, length, position)
        except OSError as error:
            raise OSError(
                f"{self.rec_path}: key {self.index.keys_at(row)} at offset {position} cannot be read "
                f"({error.strerror}): look at the disk or the network it is on"
            ) from error

    def _broken(self, row: int, offset: int, what: str) -> ValueError:
        return ValueError(
            f"{self.rec_path}: key {self.index.keys_at(row)} at offset {offset} {what}; copy the .rec and its .idx "
            "again, they must belong together"
        )

    def close(self) -> None:
        """Close the file, which otherwise is done when the reader is dropped; a second call does nothing."""
        self._close()
        self._fd = -1  # the number may soon be that of another file


def require_file(path: str, meaning: str) -> int:
    """Size of the file in bytes. Raises FileNotFoundError if it is missing, ValueError if it is empty."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path} ({meaning}) is not there: check the data set's folder or download it again")
    size = os.path.getsize(path)
    if size == 0:
        raise ValueError(f"{path} ({meaning}) is empty: copy or download it again")
    return size
