"""Reads the headers of many records at once, without their images.

Shapes: n records.
"""

from __future__ import annotations

import numpy as np

from .format import HEADER, LENGTH_BITS, MAGIC, MAX_PART
from .reader import RecordReader

# First bytes of a record in the file: two words, the header, and up to two labels (image bytes if flag is 0).
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
CHUNK = 1 << 16  # records read at once: 2.6 MB of headers, 21 MB of byte positions


def read_headers(reader: RecordReader, keys: np.ndarray) -> np.ndarray:
    """Reads HEAD (n,) of the records `keys` (n,) int64. Raises KeyError or ValueError, naming file and key."""
    index = reader.index
    rows = index.search(keys)
    absent = (rows == len(index)) | (index.keys_at(np.minimum(rows, len(index) - 1)) != keys)
    if absent.any():
        raise KeyError(f"{reader.idx_path} has no key {keys[absent.argmax()]}")
    offsets = index.offsets[rows]
    data = np.memmap(reader.rec_path, np.uint8, mode="r")
    heads = np.empty(len(keys), HEAD)
    for begin in range(0, len(keys), CHUNK):
        where = offsets[begin : begin + CHUNK, None] + np.arange(HEAD.itemsize)
        # The last record of a file may be shorter than HEAD; the extra bytes are not used.
        np.minimum(where, len(data) - 1, out=where)
        heads[begin : begin + CHUNK] = data[where].view(HEAD)[:, 0]
    check_heads(reader, keys, offsets, heads)
    return heads


def check_heads(reader: RecordReader, keys: np.ndarray, offsets: np.ndarray, heads: np.ndarray) -> None:
    """Raises ValueError for the first record without a complete header in its first part."""
    length = heads["word"] & np.uint32(MAX_PART)
    wrong = (heads["magic"] != MAGIC) | (heads["word"] >> LENGTH_BITS > 1) | (length < HEADER.size)
    wrong |= (heads["flag"] > 0) & (length < HEADER.size + 4)
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"{reader.rec_path}: key {keys[row]} at offset {offsets[row]} has no image header; copy the .rec and its "
            ".idx again, they must belong together"
        )


def holds_range(heads: np.ndarray) -> np.ndarray:
    """Returns (n,) bool: the record has two labels and no image, as an identity record."""
    return (heads["flag"] == 2) & (heads["word"] & np.uint32(MAX_PART) == HEADER.size + 8)


def first_labels(heads: np.ndarray) -> np.ndarray:
    """Returns float32 (n,): the label of the header, or the first one of several."""
    return np.where(heads["flag"] > 0, heads["labels"][:, 0], heads["label"])
