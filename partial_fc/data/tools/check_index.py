"""Checks of the index alone, for `check`.

Shapes: K valid lines of the index.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from partial_fc.data.recordio.format import WORDS
from partial_fc.data.recordio.index import read_lines

INDEX, FILE, IMAGE, IDENTITY = "index", "file", "image", "identity"  # the part of a problem determines the advice
TEXT_SHOWN = 40  # bytes of a bad line
FEW = 0.01  # share of the lines: more descending offsets are another order of all lines, not swapped lines


class Problem(NamedTuple):
    """A problem: the part of the set, and a message."""

    part: str
    text: str


class IndexLines:
    """The lines of an `.idx`.

    Attributes:
        keys, offsets: (K,) int64, in the order of the lines.
        bad: (line number from 1, text) of invalid lines.
    """

    def __init__(self, idx_path: str):
        self.bad: list[tuple[int, bytes]] = []
        tables = list(read_lines(idx_path, self.bad)) or [np.empty((0, 2), np.int64)]
        # Two arrays, each joined from chunks, so that no second table of all lines exists.
        self.keys = np.concatenate([table[:, 0] for table in tables])
        self.offsets = np.concatenate([table[:, 1] for table in tables])


def at(key: int, offset: int, what: str) -> str:
    """Returns the message of a problem of a record."""
    return f"key {key} at offset {offset}: {what}"


def index_problems(lines: IndexLines, name: str, rec_size: int) -> Iterator[Problem]:
    """Yields all problems of the index `name` of a `.rec` of `rec_size` bytes."""
    yield from bad_lines(lines, name)
    yield from invalid_offsets(lines, rec_size)
    yield from repeated_keys(lines)
    yield from repeated_offsets(lines)
    yield from falling_offsets(lines, rec_size)


def bad_lines(lines: IndexLines, name: str) -> Iterator[Problem]:
    """Yields lines that are not 'key<TAB>offset'."""
    for number, text in lines.bad:
        yield Problem(INDEX, f"{name} line {number}: {text[:TEXT_SHOWN]!r} is not 'key<TAB>offset' in whole numbers")


def invalid(lines: IndexLines, rec_size: int) -> np.ndarray:
    """Returns (K,) bool: no record can begin at that offset."""
    return (lines.offsets + WORDS.size > rec_size) | (lines.offsets % 4 != 0)


def invalid_offsets(lines: IndexLines, rec_size: int) -> Iterator[Problem]:
    """Yields offsets beyond the end, and offsets that are not a multiple of 4."""
    for row in np.flatnonzero(invalid(lines, rec_size)).tolist():
        key, offset = int(lines.keys[row]), int(lines.offsets[row])
        what = "is not a multiple of 4, where no record can begin" if offset % 4 else f"the file ends at {rec_size}"
        yield Problem(INDEX if offset % 4 else FILE, at(key, offset, what))


def repeated_keys(lines: IndexLines) -> Iterator[Problem]:
    """Yields repeated keys."""
    for row, first in repeats(lines.keys):
        key, offset = int(lines.keys[row]), int(lines.offsets[row])
        yield Problem(INDEX, at(key, offset, f"the key is repeated, first at offset {lines.offsets[first]}"))


def repeated_offsets(lines: IndexLines) -> Iterator[Problem]:
    """Yields offsets of two different keys."""
    for row, first in repeats(lines.offsets):
        if lines.keys[row] != lines.keys[first]:
            key, offset = int(lines.keys[row]), int(lines.offsets[row])
            yield Problem(INDEX, at(key, offset, f"the key {lines.keys[first]} has the same offset"))


def repeats(values: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yields (row, first row with the same value) of every row with a repeated value."""
    if (values[1:] > values[:-1]).all():
        return
    order = np.argsort(values, kind="stable")
    new = np.append(True, values[order][1:] != values[order][:-1])[: len(order)]
    firsts = order[np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))]
    for place in np.flatnonzero(~new).tolist():
        yield int(order[place]), int(firsts[place])


def falling_offsets(lines: IndexLines, rec_size: int) -> Iterator[Problem]:
    """Yields lines out of order: lines follow the order of records, except key 0, which may be anywhere.

    If many offsets descend, all lines are in another order, which readers accept.
    """
    rows = np.flatnonzero((lines.keys != 0) & ~invalid(lines, rec_size))
    offsets = lines.offsets[rows]
    descents = np.flatnonzero(offsets[1:] < offsets[:-1]) + 1
    if len(descents) > max(2, FEW * len(rows)):
        return
    for row in descents.tolist():
        key, before = int(lines.keys[rows[row]]), rows[row - 1]
        what = f"is listed after key {lines.keys[before]} at offset {lines.offsets[before]}: rows are swapped"
        yield Problem(INDEX, at(key, int(offsets[row]), what))
