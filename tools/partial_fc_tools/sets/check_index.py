"""Checks of the index alone, for `check`.

Shapes: K valid lines of the index.
"""

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

    def problem(self, part: str, row: int, what: str) -> Problem:
        """Returns the problem of the line `row`."""
        return Problem(part, at(self.keys[row], self.offsets[row], what))


def at(key: int, offset: int, what: str) -> str:
    """Returns the message of a problem of a record."""
    return f"key {key} at offset {offset}: {what}"


def index_problems(lines: IndexLines, name: str, rec_size: int) -> Iterator[Problem]:
    """Yields all problems of the index `name` of a `.rec` of `rec_size` bytes."""
    for number, text in lines.bad:
        yield Problem(INDEX, f"{name} line {number}: {text[:TEXT_SHOWN]!r} is not 'key<TAB>offset' in whole numbers")
    for row in np.flatnonzero(invalid(lines, rec_size)).tolist():
        if lines.offsets[row] % 4:
            yield lines.problem(INDEX, row, "is not a multiple of 4, where no record can begin")
        else:
            yield lines.problem(FILE, row, f"the file ends at {rec_size}")
    for row, first in repeats(lines.keys):
        yield lines.problem(INDEX, row, f"the key is repeated, first at offset {lines.offsets[first]}")
    for row, first in repeats(lines.offsets):
        if lines.keys[row] != lines.keys[first]:
            yield lines.problem(INDEX, row, f"the key {lines.keys[first]} has the same offset")
    yield from falling_offsets(lines, rec_size)


def invalid(lines: IndexLines, rec_size: int) -> np.ndarray:
    """Returns (K,) bool: no record can begin at that offset."""
    return (lines.offsets + WORDS.size > rec_size) | (lines.offsets % 4 != 0)


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
    for row, before in zip(rows[descents], rows[descents - 1]):
        what = f"is listed after key {lines.keys[before]} at offset {lines.offsets[before]}: rows are swapped"
        yield lines.problem(INDEX, row, what)
