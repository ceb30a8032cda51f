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
FEW = 0.01  # fraction of the lines; with more descending offsets the index has another order, not swapped lines


class Problem(NamedTuple):
    """A problem: the part of the set, and a message."""

    part: str
    text: str


def record_problem(key: int, offset: int, part: str, what: str) -> Problem:
    """Returns the problem of a record."""
    return Problem(part, f"key {key} at offset {offset}: {what}")


class IndexLines:
    """The lines of an `.idx`.

    Attributes:
        keys, offsets: (K,) int64, in the order of the lines.
        bad: (line number from 1, text) of invalid lines.
    """

    def __init__(self, idx_path: str):
        self.bad: list[tuple[int, bytes]] = []
        tables = list(read_lines(idx_path, self.bad)) or [np.empty((0, 2), np.int64)]
        # Each column is joined on its own: joining the tables would hold all lines twice.
        self.keys = np.concatenate([table[:, 0] for table in tables])
        self.offsets = np.concatenate([table[:, 1] for table in tables])

    def invalid(self, rec_size: int) -> np.ndarray:
        """Returns (K,) bool: no record of a `.rec` of `rec_size` bytes can begin at that offset."""
        return (self.offsets + WORDS.size > rec_size) | (self.offsets % 4 != 0)

    def problems(self, name: str, rec_size: int) -> Iterator[Problem]:
        """Yields all problems of the index `name` of a `.rec` of `rec_size` bytes."""

        def problem(row: int, what: str, part: str = INDEX) -> Problem:
            return record_problem(self.keys[row], self.offsets[row], part, what)

        for number, text in self.bad:
            yield Problem(
                INDEX, f"{name} line {number}: {text[:TEXT_SHOWN]!r} is not 'key<TAB>offset' in whole numbers"
            )
        for row in np.flatnonzero(self.invalid(rec_size)).tolist():
            if self.offsets[row] % 4:
                yield problem(row, "the offset is not a multiple of 4, where no record begins")
            else:
                yield problem(row, f"the file ends at {rec_size}", FILE)
        for row, first in repeats(self.keys):
            yield problem(row, f"the key is repeated, first at offset {self.offsets[first]}")
        for row, first in repeats(self.offsets):
            if self.keys[row] != self.keys[first]:
                yield problem(row, f"the key {self.keys[first]} has the same offset")
        # Lines follow the order of the records, except for key 0, which may be anywhere. Readers accept any order:
        # if many offsets descend, all lines have another order, which is not a problem.
        rows = np.flatnonzero((self.keys != 0) & ~self.invalid(rec_size))
        descents = np.flatnonzero(np.diff(self.offsets[rows]) < 0) + 1
        if len(descents) <= max(2, FEW * len(rows)):
            for row, before in zip(rows[descents], rows[descents - 1]):
                key, offset = self.keys[before], self.offsets[before]
                yield problem(row, f"is listed after key {key} at offset {offset}: rows are swapped")


def repeats(values: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yields (row, first row with the same value) of every row with a repeated value."""
    if (values[1:] > values[:-1]).all():  # the usual case, without sorting
        return
    order = np.argsort(values, kind="stable")
    is_new = np.append(True, np.diff(values[order]) != 0)
    firsts = order[np.maximum.accumulate(np.where(is_new, np.arange(len(order)), 0))]
    for index in np.flatnonzero(~is_new).tolist():
        yield int(order[index]), int(firsts[index])
