"""Reads records by their key from a `.rec` with its `.idx`. See format.py for the layout.

Shapes: n records.
"""

import hashlib
import os
import weakref

import numpy as np

from .format import FIRST, HEAD, HEADER, LENGTH_BITS, MAGIC, MAX_PART, WORDS, require_file
from .index import open_index
from .scanner import BrokenRecordError, Extent, locate_record, read_payload

SAMPLES = 64  # records checked on opening, which takes less than a second on an uncached disk
DIGESTED = 1 << 20  # bytes of the .rec that are part of its digest; also the rows that are hashed at once
CHUNK = 1 << 16  # headers read at once: 2.6 MB, and 21 MB of byte positions
MAX_GUESS = 1 << 20  # bytes; a longer extent is not an image, and the index may be wrong


class RecordReader:
    """Random access by key. Thread-safe and fork-safe, because `os.pread` uses no shared file position.

    Opening checks that the last record ends at the end of the `.rec`, and that records begin at SAMPLES offsets.

    Attributes:
        index: the RecordIndex.

    Raises:
        OSError, ValueError: a file is missing or empty, or the files do not belong together; the message has a fix.
    """

    def __init__(self, rec_path: str | os.PathLike, idx_path: str | os.PathLike):
        self.rec_path, self.idx_path = os.fspath(rec_path), os.fspath(idx_path)
        self._size = require_file(self.rec_path, "the records")
        require_file(self.idx_path, "the index of the records")
        self.index = open_index(self.idx_path, self._size)
        self._fd = os.open(self.rec_path, os.O_RDONLY)
        self._close = weakref.finalize(self, os.close, self._fd)
        try:
            for row in np.random.default_rng(0).integers(0, len(self.index), SAMPLES).tolist():
                self._locate(row)
            last = int(self.index.offsets.argmax())
            end = self._locate(last).end
            if end != self._size:
                raise ValueError(
                    f"{self.idx_path} ends with key {self.index.keys_at(last)}, whose record ends at byte {end}, but "
                    f"{self.rec_path} has {self._size} bytes; lines are missing or the .idx belongs to another .rec: "
                    "copy both again"
                )
        except ValueError:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self.index)

    def digest(self) -> str:
        """Returns 16 hexadecimal digits that identify the set, independent of its path.

        They depend on the size of the .rec, on all keys and offsets, and on the first mebibyte; hashing every image
        would read the whole file.
        """
        digest = hashlib.sha256(f"{self._size} {len(self.index)}".encode())
        rows = np.arange(len(self.index))
        for part in np.array_split(rows, 1 + len(rows) // DIGESTED):
            digest.update(self.index.offsets[part].tobytes())
            digest.update(self.index.keys_at(part).tobytes())
        digest.update(os.pread(self._fd, DIGESTED, 0))
        return digest.hexdigest()[:16]

    def rows(self, keys: np.ndarray) -> np.ndarray:
        """Returns the rows (n,) int64 of `keys` (n,) in the index. Raises KeyError if a key is missing."""
        rows = self.index.search(keys)
        missing = (rows == len(self)) | (self.index.keys_at(np.minimum(rows, len(self) - 1)) != keys)
        if missing.any():
            raise KeyError(f"{self.idx_path} has no key {keys[missing.argmax()]}")
        return rows

    def read_heads(self, keys: np.ndarray) -> np.ndarray:
        """Reads (n,) HEAD of the records with `keys` (n,) int64, without their images.

        Raises:
            KeyError, ValueError: a key is missing, or the first part of its record has no complete header.
        """
        offsets = self.index.offsets[self.rows(keys)]
        data = np.memmap(self.rec_path, np.uint8, mode="r")
        heads = np.empty(len(keys), HEAD)
        for begin in range(0, len(keys), CHUNK):
            positions = offsets[begin : begin + CHUNK, None] + np.arange(HEAD.itemsize)
            # The last record of a file may be shorter than HEAD; the bytes after its end are not used.
            np.minimum(positions, len(data) - 1, out=positions)
            heads[begin : begin + CHUNK] = data[positions].view(HEAD)[:, 0]
        length = heads["word"] & np.uint32(MAX_PART)
        wrong = (heads["magic"] != MAGIC) | (heads["word"] >> LENGTH_BITS > FIRST) | (length < HEADER.size)
        wrong |= (heads["flag"] > 0) & (length < HEADER.size + 4)
        if wrong.any():
            row = int(wrong.argmax())
            raise ValueError(
                f"{self.rec_path}: key {keys[row]} at offset {offsets[row]} has no image header; copy the .rec and its "
                ".idx again, they must belong together"
            )
        return heads

    def read(self, key: int) -> bytes:
        """Reads the payload of a record. Raises ValueError, naming file, key and offset, if the record is damaged."""
        return self.read_row(int(self.rows(np.array([key]))[0]))

    def read_row(self, row: int) -> bytes:
        """Reads the payload of the record in a row of the index. Raises as `read`."""
        start = int(self.index.offsets[row])
        # The record of the next row usually follows this one, and then a single call reads this record.
        extent = int(self.index.offsets[row + 1]) - start if row + 1 < len(self.index) else 0
        try:
            if WORDS.size < extent <= MAX_GUESS:
                data = os.pread(self._fd, extent, start)
                if len(data) == extent:
                    magic, word = WORDS.unpack_from(data)
                    if magic == MAGIC and word <= extent - WORDS.size:  # continue flag 0: a complete record
                        return data[WORDS.size : WORDS.size + word]
            return read_payload(self._fd, locate_record(self._fd, start, self._size))
        except (BrokenRecordError, OSError) as error:
            raise self._named(row, error) from error

    def _locate(self, row: int) -> Extent:
        try:
            return locate_record(self._fd, int(self.index.offsets[row]), self._size)
        except (BrokenRecordError, OSError) as error:
            raise self._named(row, error) from error

    def _named(self, row: int, error: Exception) -> Exception:
        """Returns the error with the place where it occurred and what to do."""
        where = f"{self.rec_path}: key {self.index.keys_at(row)} at offset {self.index.offsets[row]}"
        if isinstance(error, OSError):
            return OSError(f"{where} cannot be read ({error.strerror}): check the disk or the network file system")
        return ValueError(f"{where} {error}; copy the .rec and its .idx again, they must belong together")

    def close(self) -> None:
        """Closes the file; a second call has no effect. The file is also closed when the reader is deleted."""
        self._close()
        self._fd = -1  # the descriptor can be reused for another file
