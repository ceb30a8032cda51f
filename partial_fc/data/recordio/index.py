"""Where each record of a `.rec` begins: the `.idx`, as arrays that all processes of a host can share.

The text of a set of 17 million images is 360 MB and takes seconds to parse, and as a dictionary it would take gigabytes
in every rank. Here it becomes 8 bytes a record. From SHARE_FROM records on these are kept in a file beside the `.idx`
(`train.idx.offsets`), written by the first process that parses the text and mapped by all others, so that the ranks of
a host share its pages. It holds nothing that the `.idx` does not, may be removed at any time, is ignored when it is
older than the `.idx`, and is not written where the folder is read-only.

Layout of that file, little-endian int64: STAMP words (format, size and time in ns of the .idx, K, first key, has keys,
sum of the first key and all that follows), then offsets (K,), then keys (K,) unless they follow one after the other.

Shapes: K records in the index; rows are in the order of the keys.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from partial_fc.utils.staging import staged_files

CHUNK = 8 << 20  # bytes of text parsed at once: bounds the memory, whatever the size of the set
SHARE_FROM = 1 << 20  # records; below, parsing takes less than a tenth of a second
FORMAT = 0x31584449_43465001  # names this layout, and in its low bits the version
STAMP = 7  # words
ENDING = ".offsets"


class RecordIndex:
    """Offsets (K,) int64 of the records, rows in the order of their keys.

    `keys` (K,) int64 ascending, or None where they are `first`, `first` + 1, ...: what sets are in practice.
    """

    def __init__(self, offsets: np.ndarray, first: int = 0, keys: np.ndarray | None = None):
        self.offsets, self.first, self._keys = offsets, first, keys

    def __len__(self) -> int:
        return len(self.offsets)

    def keys_at(self, rows) -> np.ndarray:
        """The keys, int64, of an array of rows or of one row."""
        return np.asarray(rows, np.int64) + self.first if self._keys is None else self._keys[rows]

    def search(self, keys) -> np.ndarray:
        """For each key the first row whose key is not smaller, 0 .. K, int64."""
        if self._keys is not None:
            return np.searchsorted(self._keys, keys)
        return np.clip(np.asarray(keys, np.int64) - self.first, 0, len(self))

    def row(self, key: int) -> int:
        """The row of a key, -1 if it is not there."""
        row = int(self.search(key))
        return row if row < len(self) and int(self.keys_at(row)) == key else -1


def open_index(idx_path: str, rec_size: int) -> RecordIndex:
    """The index of a `.rec` of `rec_size` bytes. Raises OSError, or ValueError naming the file, key and mend."""
    shared = read_shared(idx_path)
    if shared is not None:
        return shared
    file = file_words(idx_path)
    index = parse_index(idx_path)
    check_offsets(idx_path, index, rec_size)
    if len(index) < SHARE_FROM or (file_words(idx_path) != file).any():  # not while somebody is still writing it
        return index
    write_shared(idx_path, file, index)
    return read_shared(idx_path) or index


# The text ------------------------------------------------------------------------------------------


def parse_index(idx_path: str) -> RecordIndex:
    """The index out of its text. Raises ValueError if that is no index or if a key is there twice."""
    count = count_lines(idx_path)
    return parse_dense(idx_path, count) or parse_sparse(idx_path, count)


def count_lines(idx_path: str) -> int:
    """Lines of the file, with or without a line feed after the last."""
    count, last = 0, b"\n"
    with open(idx_path, "rb") as file:
        for text in iter(lambda: file.read(CHUNK), b""):
            count, last = count + text.count(b"\n"), text[-1:]
    return count + (last != b"\n")


def parse_dense(idx_path: str, count: int) -> RecordIndex | None:
    """The index if its keys are 0 .. K-1 or 1 .. K in any order, else None: 8 bytes a record."""
    table = np.full(count + 1, -1, np.int64)
    for keys, offsets in parse_chunks(idx_path):
        if keys.max() > count:
            return None
        table[keys] = offsets
    if table[1:].min(initial=0) >= 0:
        return RecordIndex(table[1:], first=1) if table[0] < 0 else None
    return RecordIndex(table[:-1]) if table[:-1].min() >= 0 else None


def parse_sparse(idx_path: str, count: int) -> RecordIndex:
    """The index with any keys: 16 bytes a record."""
    table, filled = np.empty((2, count), np.int64), 0
    for keys, offsets in parse_chunks(idx_path):
        table[:, filled : filled + len(keys)] = keys, offsets
        filled += len(keys)
    keys, offsets = table
    if np.any(keys[1:] <= keys[:-1]):
        order = np.argsort(keys, kind="stable")
        keys, offsets = keys[order], offsets[order]
        twice = np.flatnonzero(keys[1:] == keys[:-1])
        if len(twice):
            raise ValueError(f"{idx_path}: key {keys[twice[0]]} stands there twice; write the index again")
    return RecordIndex(offsets, keys=keys)


def parse_chunks(idx_path: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """keys and offsets, int64, of some thousand lines at a time."""
    line = 1
    with open(idx_path, "rb") as file:
        for text in iter(lambda: file.read(CHUNK), b""):
            text += file.readline()
            table = parse_lines(text, idx_path, line)
            line += len(table)
            yield table[:, 0], table[:, 1]


def parse_lines(text: bytes, idx_path: str, first_line: int) -> np.ndarray:
    """(lines, 2) int64 of whole `key<TAB>offset` lines; `first_line` is the number of the first, for the error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # older numpy only warns about text that is no number
            numbers = np.fromstring(text, dtype=np.int64, sep=" ")
    except (ValueError, DeprecationWarning):
        numbers = np.empty(0, np.int64)
    lines = text.count(b"\n") + (not text.endswith(b"\n"))
    if len(numbers) != 2 * lines or numbers.min() < 0:
        where = first_line + wrong_line(text)
        raise ValueError(
            f"{idx_path} is no RecordIO index: line {where} is not 'key<TAB>offset' in whole numbers; copy it again"
        )
    return numbers.reshape(-1, 2)


def wrong_line(text: bytes) -> int:
    """Number, from 0, of the first line that does not hold two whole numbers."""
    for number, line in enumerate(text.split(b"\n")):
        words = line.split()
        if len(words) != 2 or not all(word.isdigit() for word in words):
            return number
    return 0


# Whether it fits -----------------------------------------------------------------------------------


def check_offsets(idx_path: str, index: RecordIndex, rec_size: int) -> None:
    """Raise ValueError if an offset is beyond the file, is no multiple of 4, or belongs to two keys."""
    ascending = True
    for begin in range(0, len(index), CHUNK // 8):
        part = index.offsets[begin : begin + CHUNK // 8 + 1]  # one more, for the step into the next part
        beyond = (part >= rec_size) | (part % 4 != 0)
        if beyond.any():
            row = begin + int(beyond.argmax())
            raise ValueError(
                f"{idx_path}: key {index.keys_at(row)} is at offset {index.offsets[row]}, where no record of a file of "
                f"{rec_size} bytes can begin; the .rec is cut short or the .idx belongs to another one: copy both again"
            )
        # Record 0 is often written last.
        ascending = ascending and bool((part[begin == 0 :][1:] > part[begin == 0 :][:-1]).all())
    if not ascending or (index.offsets[1:] == index.offsets[0]).any():
        check_distinct(idx_path, index)


def check_distinct(idx_path: str, index: RecordIndex) -> None:
    """Raise ValueError if two keys have one offset. Sorts them all, so only for offsets that do not ascend."""
    order = np.argsort(index.offsets, kind="stable")
    same = index.offsets[order[1:]] == index.offsets[order[:-1]]
    if same.any():
        row = int(same.argmax())
        one, other = index.keys_at(order[row : row + 2])
        raise ValueError(
            f"{idx_path}: the keys {one} and {other} both are at offset {index.offsets[order[row]]}; write the index "
            "again"
        )


# The file that processes share ---------------------------------------------------------------------


def file_words(idx_path: str) -> np.ndarray:
    """The first STAMP words: the format, and what tells this `.idx` from an earlier one."""
    about = os.stat(idx_path)
    return np.array([FORMAT, about.st_size, about.st_mtime_ns], "<i8")


def read_shared(idx_path: str) -> RecordIndex | None:
    """The mapped index, None if there is none for this very `.idx`."""
    try:
        words = np.memmap(idx_path + ENDING, "<i8", mode="r")
    except (OSError, ValueError):  # not there, or empty
        return None
    if len(words) < STAMP or (words[:3] != file_words(idx_path)).any():
        return None
    count, first, has_keys, checksum = (int(word) for word in words[3:STAMP])
    if len(words) != STAMP + count * (1 + has_keys) or first + int(words[STAMP:].sum()) != checksum:
        return None
    keys = words[STAMP + count :] if has_keys else None
    return RecordIndex(words[STAMP : STAMP + count], first, keys)


def write_shared(idx_path: str, file_stamp: np.ndarray, index: RecordIndex) -> None:
    """Write the file for others to map, whole or not at all; a folder that cannot be written to is no error."""
    parts = [index.offsets] if index._keys is None else [index.offsets, index._keys]
    checksum = index.first + sum(int(part.sum()) for part in parts)
    words = [*file_stamp, len(index), index.first, len(parts) == 2, checksum]
    folder, name = os.path.split(idx_path + ENDING)
    # Other ranks may write it at the same time, each in a temporary folder of its own.
    with suppress(OSError), staged_files(folder, [name], True) as stage, open(os.path.join(stage, name), "wb") as file:
        for part in (np.array(words, "<i8"), *parts):
            part.tofile(file)
        file.flush()
        os.fsync(file.fileno())
        os.fchmod(file.fileno(), 0o644)  # other users of the set may read it
