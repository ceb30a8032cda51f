"""The index (`.idx`) of a `.rec`: the offset of each record, as arrays that all processes of a host share.

The text of an index of 17 million images has 360 MB and takes seconds to parse, and a dictionary would take gigabytes
in every rank. Here a record takes 8 bytes. If there are SHARE_FROM records or more, the first process that parses the
text writes the arrays to a file next to the `.idx` (`train.idx.offsets`). Other processes map this file, so that the
ranks of a host share its memory. The file can be deleted at any time. It is ignored if the `.idx` has changed, and not
written if the folder is read-only.

Layout of the file, after the stamp of stamped_words.py: HEADER_WORDS words (K, the first key, whether keys follow, and
the sum of the first key and of everything after the header), offsets (K,), and keys (K,) unless they are consecutive.

Shapes: K records in the index; rows are in the order of the keys.
"""

import os
import re
import warnings
from collections.abc import Iterator

import numpy as np

from partial_fc.data.stamped_words import file_stamp, read_words, write_words
from partial_fc.utils.regular_files import open_text

CHUNK = 256 << 10  # bytes of text parsed at once; invalid lines take up to 200 times as much memory
MAX_INVALID = 1 << 16  # invalid lines that are listed
SHARE_FROM = 1 << 20  # records; parsing fewer takes less than a tenth of a second
FORMAT = 0x31584449_43465001  # identifies this layout; the version is in the low bits
HEADER_WORDS = 4
TAB, LINE_FEED = b"\t\n"
LINE = re.compile(rb"(\d{1,18})[\t ]+(\d{1,18})\r?")
ENDING = ".offsets"


class RecordIndex:
    """Offsets of the records, in the order of their keys.

    Args:
        offsets: (K,) int64.
        first: the first key if keys are consecutive, as in most sets.
        keys: (K,) int64, ascending, or None if keys are consecutive.
    """

    def __init__(self, offsets: np.ndarray, first: int = 0, keys: np.ndarray | None = None):
        self.offsets, self.first, self._keys = offsets, first, keys

    def __len__(self) -> int:
        return len(self.offsets)

    def keys_at(self, rows) -> np.ndarray:
        """Returns the keys, int64, of rows."""
        return np.asarray(rows, np.int64) + self.first if self._keys is None else self._keys[rows]

    def search(self, keys) -> np.ndarray:
        """Returns the first row, 0 .. K, whose key is not smaller, for each key; int64."""
        if self._keys is not None:
            return np.searchsorted(self._keys, keys)
        return np.clip(np.asarray(keys, np.int64) - self.first, 0, len(self))


def open_index(idx_path: str, rec_size: int) -> RecordIndex:
    """Opens the index of a `.rec` of `rec_size` bytes. Raises OSError, or ValueError that names file, key and fix."""
    shared = read_shared(idx_path)
    if shared is not None:
        return shared
    stamp = file_stamp(idx_path, FORMAT)
    index = parse_index(idx_path)
    check_offsets(idx_path, index, rec_size)
    if len(index) < SHARE_FROM or (file_stamp(idx_path, FORMAT) != stamp).any():  # the .idx is being written
        return index
    parts = [index.offsets] if index._keys is None else [index.offsets, index._keys]
    checksum = index.first + sum(int(part.sum()) for part in parts)
    write_words(idx_path + ENDING, stamp, np.array([len(index), index.first, len(parts) == 2, checksum]), *parts)
    return read_shared(idx_path) or index


def read_shared(idx_path: str) -> RecordIndex | None:
    """Maps the shared index; returns None if there is none for the current `.idx`."""
    words = read_words(idx_path + ENDING, file_stamp(idx_path, FORMAT))
    if words is None or len(words) < HEADER_WORDS:
        return None
    count, first, has_keys, checksum = (int(word) for word in words[:HEADER_WORDS])
    if count < 1 or first not in (0, 1) or has_keys not in (0, 1):
        return None
    if len(words) != HEADER_WORDS + count * (1 + has_keys) or first + int(words[HEADER_WORDS:].sum()) != checksum:
        return None
    offsets, keys = words[HEADER_WORDS : HEADER_WORDS + count], words[HEADER_WORDS + count :] if has_keys else None
    if offsets.min() < 0 or (keys is not None and (keys[1:] <= keys[:-1]).any()):
        return None
    return RecordIndex(offsets, first, keys)


# The text file ------------------------------------------------------------------------------------------


def parse_index(idx_path: str) -> RecordIndex:
    """Parses the text of an index. Raises ValueError for invalid lines and repeated keys."""
    count = count_lines(idx_path)
    # Lines shorter than "0\t0\n" are invalid, and a table for all of them could be large; parse_sparse refuses them.
    has_short_lines = 4 * count > os.path.getsize(idx_path) + 1
    return (None if has_short_lines else parse_dense(idx_path, count)) or parse_sparse(idx_path)


def count_lines(idx_path: str) -> int:
    """Returns the number of lines; the last one may lack its line feed."""
    count, last = 0, b"\n"
    with open_text(idx_path) as file:
        for text in iter(lambda: file.read(CHUNK), b""):
            count, last = count + text.count(b"\n"), text[-1:]
    return count + (last != b"\n")


def parse_dense(idx_path: str, count: int) -> RecordIndex | None:
    """Parses an index with the keys 0 .. K-1 or 1 .. K in any order, in 8 bytes per record; else returns None."""
    table = np.full(count + 1, -1, np.int64)
    for keys, offsets in (lines.T for lines in read_lines(idx_path)):
        if keys.max() > count:
            return None
        table[keys] = offsets
    if table[1:].min(initial=0) >= 0:
        return RecordIndex(table[1:], first=1) if table[0] < 0 else None
    return RecordIndex(table[:-1]) if table[:-1].min() >= 0 else None


def parse_sparse(idx_path: str) -> RecordIndex:
    """Parses an index with any keys, in 16 bytes per record."""
    keys, offsets = np.concatenate(list(read_lines(idx_path))).T
    order = np.argsort(keys, kind="stable")
    keys, offsets = keys[order], offsets[order]
    repeated = np.flatnonzero(keys[1:] == keys[:-1])
    if len(repeated):
        raise ValueError(f"{idx_path}: key {keys[repeated[0]]} is repeated; write the index again")
    return RecordIndex(offsets, keys=keys)


def read_lines(idx_path: str, bad: list[tuple[int, bytes]] | None = None) -> Iterator[np.ndarray]:
    """Yields keys and offsets, (lines, 2) int64, of some thousand lines at a time.

    Appends (number from 1, text) of each invalid line to `bad`; raises ValueError if it is None or gets too long.
    """
    first = 1
    with open_text(idx_path) as file:
        for text in iter(lambda: file.read(CHUNK), b""):
            text += file.readline()
            table = parse_plain(text)
            if table is None:
                table, invalid = parse_each(text, first)
                if bad is not None and len(bad) + len(invalid) <= MAX_INVALID:
                    bad += invalid
                elif invalid:
                    raise ValueError(
                        f"{idx_path} is not a RecordIO index: line {invalid[0][0]} is not 'key<TAB>offset' in "
                        "integers; copy it again"
                    )
            yield table
            first += text.count(b"\n")


def parse_plain(text: bytes) -> np.ndarray | None:
    """Parses valid lines to (lines, 2) int64; returns None if a line may be invalid."""
    characters = np.frombuffer(text if text.endswith(b"\n") else text + b"\n", np.uint8)
    separators = characters[characters < ord("0")]
    if characters.max() > ord("9") or (separators[::2] != TAB).any() or (separators[1::2] != LINE_FEED).any():
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # older NumPy versions warn about invalid text
        numbers = np.fromstring(text, dtype=np.int64, sep=" ")
    return numbers.reshape(-1, 2) if len(numbers) == len(separators) else None


def parse_each(text: bytes, first: int) -> tuple[np.ndarray, list[tuple[int, bytes]]]:
    """Parses valid lines to (lines, 2) int64; also returns invalid ones. `first` is the number of the first line."""
    lines = enumerate(text.removesuffix(b"\n").split(b"\n"), start=first)
    matches = [(number, line, LINE.fullmatch(line)) for number, line in lines]
    good = [(int(match[1]), int(match[2])) for _, _, match in matches if match]
    bad = [(number, line) for number, line, match in matches if not match]
    return np.array(good, np.int64).reshape(-1, 2), bad


# Consistency --------------------------------------------------------------------------------------


def check_offsets(idx_path: str, index: RecordIndex, rec_size: int) -> None:
    """Raises ValueError if an offset is beyond the file, is not a multiple of 4, or belongs to two keys."""
    offsets = index.offsets
    if offsets.max() >= rec_size or np.bitwise_or.reduce(offsets) % 4:  # without an array of all remainders
        row = int(((offsets >= rec_size) | (offsets % 4 != 0)).argmax())
        raise ValueError(
            f"{idx_path}: key {index.keys_at(row)} is at offset {offsets[row]}, where no record of a file of "
            f"{rec_size} bytes can begin; the .rec is truncated or the .idx belongs to another one: copy both again"
        )
    # The usual order needs no sorting: offsets ascend, except that record 0 is often written last.
    if (offsets[2:] > offsets[1:-1]).all() and (offsets[1:] != offsets[0]).all():
        return
    order = np.argsort(offsets, kind="stable")
    same = offsets[order[1:]] == offsets[order[:-1]]
    if same.any():
        row = int(same.argmax())
        first, second = index.keys_at(order[row : row + 2])
        raise ValueError(
            f"{idx_path}: keys {first} and {second} have the same offset {offsets[order[row]]}; write the index again"
        )
