"""Recovers exact key ranges from a face set's float32 range labels (see face_records.py for the layout).

Shapes: N images, C identities, n range records.
"""

import numpy as np

from .label_runs import LabelRuns
from .recordio.format import first_labels, holds_range
from .recordio.reader import RecordReader

MAX_KEY = 2.0**53  # larger integers are not exact in float64
FLOAT32_EXACT = 1 << 24  # smaller integers are exact in float32; 2^24 itself may be a rounded 2^24 + 1


def check_limits(reader: RecordReader, keys: np.ndarray, heads: np.ndarray) -> None:
    """Raises ValueError if the labels of the range records (n,) HEAD at `keys` (n,) are not ranges of keys."""
    start, end = heads["labels"][:, 0], heads["labels"][:, 1]
    wrong = ~((start >= 1) & (start <= end) & (end < MAX_KEY))  # comparisons with NaN are false
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"{reader.rec_path}: key {keys[row]} at offset {reader.index.offsets[reader.rows(keys)[row]]} should "
            f"contain a range of keys, but contains {start[row]:g} to {end[row]:g}; copy the .rec and its .idx again"
        )


def exact_ranges(heads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ranges (n, 2) int64 of range records (n,) HEAD, and whether each is exact, (n,) bool.

    The integers in id and id2 are used only if they round to the float labels, because other writers store other values
    there: insightface stores the key and 0, and no range ends at 0.
    """
    floats, is_stored = heads["labels"], holds_integers(heads)
    stored = np.stack([heads["id"], heads["id2"]], axis=1)
    ranges = np.where(is_stored[:, None], stored.astype(np.int64), floats.astype(np.int64))
    return ranges, is_stored | (floats < FLOAT32_EXACT).all(axis=1)


def holds_integers(heads: np.ndarray) -> np.ndarray:
    """Returns (n,) bool, whether each range record (n,) HEAD also stores its range in id and id2."""
    return (np.stack([heads["id"], heads["id2"]], axis=1).astype(np.float32) == heads["labels"]).all(axis=1)


def identity_keys(reader: RecordReader, head: np.ndarray) -> tuple[int, int]:
    """Returns the keys [first, last) of the identity records, from the (1,) HEAD of record 0."""
    check_limits(reader, reader.index.keys_at([0]), head)
    ranges, exact = exact_ranges(head)
    first, last = (int(key) for key in ranges[0])
    if not exact[0]:
        # The first range record among the keys that round to the float.
        near, _ = keys_near(reader, first)
        is_range = holds_range(reader.read_heads(near))
        first = int(near[is_range.argmax()]) if is_range.any() else 0
        last = int(reader.index.keys_at(len(reader) - 1)) + 1
    rounded = head["labels"][0]
    num_listed = reader.index.search(last) - reader.index.search(first)
    agrees = np.float32(first) == rounded[0] and np.float32(last) == rounded[1]
    if not agrees or not 1 < first < last or num_listed != last - first:
        raise ValueError(
            f"{reader.rec_path}: according to record 0 identities have the keys {rounded[0]:.0f} to {rounded[1]:.0f}, "
            f"but {reader.idx_path} does not list all of them; copy both files again"
        )
    return first, last


def recover_ranges(reader: RecordReader, heads: np.ndarray, first: int) -> np.ndarray:
    """Returns the ranges (C, 2) int64 of identity records (C,) HEAD whose floats are rounded.

    Each identity starts where the previous one ends, and the label of an image is its identity. A start is therefore
    the first key, among the keys that round to the float, whose image has that label or a larger one. `first` is the
    key of the first identity record. Raises ValueError if the labels of the images do not match the ranges.
    """
    if len(heads) > FLOAT32_EXACT:
        raise ValueError(
            f"{reader.rec_path}: float32 labels cannot distinguish {len(heads)} identities; write the set with "
            "write_face_set"
        )
    starts = np.append(heads["labels"][:, 0].astype(np.int64), first)
    for label in np.flatnonzero(starts[:-1] >= FLOAT32_EXACT):
        near, largest = keys_near(reader, int(starts[label]))
        near = near[near < first]
        reached = first_labels(reader.read_heads(near)) >= label
        if reached.any():
            starts[label] = near[reached.argmax()]
        else:  # an empty identity at the end starts where the images end; -1 is refused below
            starts[label] = first if first <= largest else -1
    ranges = np.stack([starts[:-1], starts[1:]], axis=1)
    if (ranges.astype(np.float32) != heads["labels"]).any() or (ranges[:, 0] > ranges[:, 1]).any():
        raise ValueError(
            f"{reader.rec_path}: the ranges of the identity records are rounded to float32 and the images' labels do "
            "not determine them; write the set with write_face_set"
        )
    return ranges


def keys_near(reader: RecordReader, rounded: int) -> tuple[np.ndarray, int]:
    """Returns the keys of the index, int64, that round to the float32 `rounded`, and the largest integer that may."""
    reach = max(int(np.spacing(np.float32(rounded))) // 2, 1)  # half the gap to the next float32
    rows = reader.index.search((rounded - reach, rounded + reach + 1))
    return reader.index.keys_at(np.arange(*rows)), rounded + reach


def check_ranges(reader: RecordReader, ranges: np.ndarray, rows: tuple[int, int]) -> None:
    """Raises ValueError unless every image row in [rows[0], rows[1]) is in exactly one of the key ranges (C, 2)."""
    listed = np.diff(reader.index.search(ranges), axis=1)[:, 0]
    size = ranges[:, 1] - ranges[:, 0]
    wrong = (listed != size) | (size < 0)
    if wrong.any():
        label = int(wrong.argmax())
        start, end = ranges[label]
        raise ValueError(
            f"{reader.rec_path}: identity {label} has the images {start} to {end - 1}, but the index lists "
            f"{listed[label]} of {size[label]}; copy the .rec and its .idx again"
        )
    # All rows are covered once if each range, in order, begins where the previous one ends.
    begins, ends = (reader.index.search(np.sort(column[size > 0])) for column in ranges.T)
    expected = np.append(rows[0], ends)
    wrong = np.append(begins, rows[1]) != expected
    if wrong.any():
        index = int(wrong.argmax())
        row, owners = int(expected[index]), "no identity"
        if index < len(begins) and begins[index] < row:
            row, owners = int(begins[index]), "two identities"
        raise ValueError(
            f"{reader.rec_path}: image key {reader.index.keys_at(row)} belongs to {owners}, expected one; copy the "
            ".rec and its .idx again"
        )


def runs_of_ranges(ranges: np.ndarray) -> LabelRuns:
    """Returns the labels of the images in the order of their keys, for ranges (C, 2) that check_ranges has accepted."""
    size = ranges[:, 1] - ranges[:, 0]
    order = np.argsort(ranges[:, 0], kind="stable")
    order = order[size[order] > 0]
    ends = np.cumsum(size[order])
    return LabelRuns(ends - size[order], order, int(size.sum()))
