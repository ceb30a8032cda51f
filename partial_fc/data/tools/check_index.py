"""The part of `check` that looks at the index by itself, and at the bytes of the file that it covers.

Shapes: K lines of the index.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from partial_fc.data.recordio.format import WORDS

from .index_lines import IndexLines

INDEX, FILE, IMAGE, IDENTITY = "index", "file", "image", "identity"  # where a problem lies: decides what to do
TEXT_SHOWN = 40  # bytes of a bad line
FEW = 0.01  # share of the lines: more offsets that fall are another order of the lines, not lines that were mixed up


class Problem(NamedTuple):
    """One thing that is wrong: the part of the set it lies in, and a line for the user."""

    part: str
    text: str


def at(key: int, offset: int, what: str) -> str:
    """How every record that is bad is named."""
    return f"key {key} at offset {offset}: {what}"


def bad_lines(lines: IndexLines, name: str) -> Iterator[Problem]:
    """Lines that are no 'key<TAB>offset'."""
    for number, text in lines.bad:
        yield Problem(INDEX, f"{name} line {number}: {text[:TEXT_SHOWN]!r} is not 'key<TAB>offset' in whole numbers")


def impossible(lines: IndexLines, rec_size: int) -> np.ndarray:
    """(K,) bool: no record can begin at that offset."""
    return (lines.offsets + WORDS.size > rec_size) | (lines.offsets % 4 != 0)


def impossible_offsets(lines: IndexLines, rec_size: int) -> Iterator[Problem]:
    """Offsets past the end, or no multiple of 4."""
    for row in np.flatnonzero(impossible(lines, rec_size)).tolist():
        key, offset = int(lines.keys[row]), int(lines.offsets[row])
        what = "is no multiple of 4, where no record can begin" if offset % 4 else f"the file ends at {rec_size}"
        yield Problem(INDEX if offset % 4 else FILE, at(key, offset, what))


def repeated_keys(lines: IndexLines) -> Iterator[Problem]:
    """Keys that stand there twice."""
    for row, first in repeats(lines.keys):
        key, offset = int(lines.keys[row]), int(lines.offsets[row])
        yield Problem(INDEX, at(key, offset, f"the key is there twice, before at offset {lines.offsets[first]}"))


def repeated_offsets(lines: IndexLines) -> Iterator[Problem]:
    """Offsets of two different keys."""
    for row, first in repeats(lines.offsets):
        if lines.keys[row] != lines.keys[first]:
            key, offset = int(lines.keys[row]), int(lines.offsets[row])
            yield Problem(INDEX, at(key, offset, f"the key {lines.keys[first]} has the same offset"))


def repeats(values: np.ndarray) -> Iterator[tuple[int, int]]:
    """(row, first row with the same value) of every row whose value was there before."""
    if (values[1:] > values[:-1]).all():
        return
    order = np.argsort(values, kind="stable")
    new = np.append(True, values[order][1:] != values[order][:-1])[: len(order)]
    firsts = order[np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))]
    for place in np.flatnonzero(~new).tolist():
        yield int(order[place]), int(firsts[place])


def falling_offsets(lines: IndexLines, rec_size: int) -> Iterator[Problem]:
    """Lines out of order: records are listed as they are written, but for key 0, which may stand anywhere.

    Where many offsets fall, the lines are in another order as a whole, which no reader minds.
    """
    rows = np.flatnonzero((lines.keys != 0) & ~impossible(lines, rec_size))
    offsets = lines.offsets[rows]
    falls = np.flatnonzero(offsets[1:] < offsets[:-1]) + 1
    if len(falls) > max(2, FEW * len(rows)):
        return
    for fall in falls.tolist():
        key, before = int(lines.keys[rows[fall]]), rows[fall - 1]
        what = f"is listed after key {lines.keys[before]} at offset {lines.offsets[before]}: rows are swapped"
        yield Problem(INDEX, at(key, int(offsets[fall]), what))
