"""Exact key ranges out of a face set's float32 range labels (see face_records.py for the layout).

Shapes: N images, C identities, n range records.
"""

from __future__ import annotations

import numpy as np

from .label_runs import LabelRuns
from .recordio.headers import first_labels, holds_range, read_headers
from .recordio.reader import RecordReader

LARGEST_KEY = 2.0**53  # beyond, not even the sums of keys would be exact anywhere
FLOAT32_EXACT = 1 << 24  # every integer below has a float32 of its own; 2^24 itself may be a rounded 2^24 + 1


def check_limits(reader: RecordReader, keys: np.ndarray, heads: np.ndarray) -> None:
    """Raise ValueError if the labels of the range records HEAD (n,) at `keys` (n,) are no keys, or no range."""
    start, end = heads["labels"][:, 0], heads["labels"][:, 1]
    wrong = ~((start >= 1) & (start <= end) & (end < LARGEST_KEY))  # and not a number is never right
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"{reader.rec_path}: key {keys[row]} at offset {reader.index.offsets[reader.row(int(keys[row]))]} should "
            f"hold a range of keys, but holds {start[row]:g} to {end[row]:g}; copy the .rec and its .idx again"
        )


def exact_ranges(heads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ranges (n, 2) int64 of range records HEAD (n,), and whether each is exact, (n,) bool.

    The integers in id and id2 count as the range only if they round to the float labels: other writers keep other
    things there (insightface the key, and 0, which no range ends with).
    """
    floats = heads["labels"]
    stored = np.stack([heads["id"], heads["id2"]], axis=1)
    is_stored = (stored.astype(np.float32) == floats).all(axis=1)
    ranges = np.where(is_stored[:, None], stored.astype(np.int64), floats.astype(np.int64))
    return ranges, is_stored | (floats < FLOAT32_EXACT).all(axis=1)


def rounding_reach(value: float) -> int:
    """How far from a float32 an integer that rounds to it can be: half the gap to its neighbour."""
    return max(int(np.spacing(np.float32(value))) // 2, 1)


def identity_keys(reader: RecordReader, head: np.ndarray) -> tuple[int, int]:
    """[first, last) keys of the identity records, from record 0's HEAD (1,)."""
    check_limits(reader, reader.index.keys_at([0]), head)
    ranges, exact = exact_ranges(head)
    first, last = (int(key) for key in ranges[0])
    if not exact[0]:
        first, last = recover_identity_keys(reader, first), int(reader.index.keys_at(len(reader) - 1)) + 1
    stated = head["labels"][0]
    present = reader.index.search(last) - reader.index.search(first)
    agrees = np.float32(first) == stated[0] and np.float32(last) == stated[1]
    if not agrees or not 1 < first < last or present != last - first:
        raise ValueError(
            f"{reader.rec_path}: record 0 says that identities have the keys {stated[0]:.0f} to {stated[1]:.0f}, but "
            f"{reader.idx_path} does not list them all; copy both files again"
        )
    return first, last


def recover_identity_keys(reader: RecordReader, rounded: int) -> int:
    """The first identity record among the keys that round to `rounded`: it has a header and no image."""
    reach = rounding_reach(rounded)
    near = keys_between(reader, rounded - reach, rounded + reach + 1)
    heads = read_headers(reader, near)
    bare = holds_range(heads)
    return int(near[bare.argmax()]) if bare.any() else 0


def recover_ranges(reader: RecordReader, heads: np.ndarray, first: int) -> np.ndarray:
    """ranges (C, 2) int64 of identity records HEAD (C,) whose floats are rounded; their own first key is `first`.

    Each identity starts where the one before ends, and images carry the identity as label: so a start is the first
    key, among those that round to the float, whose image has that label. Raises ValueError if that does not hold.
    """
    count = len(heads)
    starts = np.append(heads["labels"][:, 0].astype(np.int64), first)
    if count > FLOAT32_EXACT:
        raise ValueError(
            f"{reader.rec_path}: float32 labels cannot tell {count} identities apart; write the set with write_face_set"
        )
    for label in np.flatnonzero(starts[:-1] >= FLOAT32_EXACT):
        starts[label] = recover_start(reader, int(starts[label]), int(label), first)
    ranges = np.stack([starts[:-1], starts[1:]], axis=1)
    if (ranges.astype(np.float32) != heads["labels"]).any() or (ranges[:, 0] > ranges[:, 1]).any():
        raise ValueError(
            f"{reader.rec_path}: the identity records' ranges are rounded to float32 and the images' labels do not "
            "settle them; write the set with write_face_set"
        )
    return ranges


def recover_start(reader: RecordReader, rounded: int, label: int, first: int) -> int:
    """First image key among those that round to `rounded` whose label is `label` or a later one; -1 if none is."""
    reach = rounding_reach(rounded)
    near = keys_between(reader, rounded - reach, min(rounded + reach + 1, first))
    labels = first_labels(read_headers(reader, near))
    found = labels >= label
    if found.any():
        return int(near[found.argmax()])
    # A last identity without images starts where the images end.
    return first if first <= rounded + reach else -1


def keys_between(reader: RecordReader, first: int, last: int) -> np.ndarray:
    """The keys of the index in [first, last), int64."""
    return reader.index.keys_at(np.arange(*reader.index.search((first, last))))


def check_ranges(reader: RecordReader, ranges: np.ndarray, rows: tuple[int, int]) -> None:
    """Raise ValueError unless every image row in [first, last) is in exactly one of the ranges (C, 2) of keys."""
    present = np.diff(reader.index.search(ranges), axis=1)[:, 0]
    size = ranges[:, 1] - ranges[:, 0]
    wrong = (present != size) | (size < 0)
    if wrong.any():
        label = int(wrong.argmax())
        start, end = ranges[label]
        raise ValueError(
            f"{reader.rec_path}: identity {label} has the images {start} to {end - 1}, but the index lists "
            f"{present[label]} of {size[label]}; copy the .rec and its .idx again"
        )
    begins, ends = (reader.index.search(np.sort(column[size > 0])) for column in ranges.T)
    due = np.append(rows[0], ends)
    wrong = np.append(begins, rows[1]) != due
    if wrong.any():
        row, owners = int(due[wrong.argmax()]), "none of the identities"
        if wrong.argmax() < len(begins) and begins[wrong.argmax()] < row:
            row, owners = int(begins[wrong.argmax()]), "two identities"
        raise ValueError(
            f"{reader.rec_path}: image key {reader.index.keys_at(row)} belongs to {owners} instead of one; copy the "
            ".rec and its .idx again"
        )


def runs_of_ranges(ranges: np.ndarray) -> LabelRuns:
    """The labels of the images in the order of their keys, for ranges (C, 2) that check_ranges accepts."""
    size = ranges[:, 1] - ranges[:, 0]
    order = np.argsort(ranges[:, 0], kind="stable")
    order = order[size[order] > 0]
    ends = np.cumsum(size[order])
    return LabelRuns(ends - size[order], order, int(size.sum()))
