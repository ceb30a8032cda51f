"""The list of pairs, 15,658,489 lines in IJB-C: read in blocks, each turned into numbers by whole-array arithmetic.

Shapes: P pairs, T templates; of a block, L lines.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

from partial_fc.utils.progress import progress

from .words import MAX_DIGITS, bad_line, rows_of

BLOCK = 1 << 22  # bytes: some 300,000 lines, whose arrays take 60 MB
SPACES = b" \t\r"
COLUMNS = 3


class Pairs(NamedTuple):
    """`left`, `right` (P,) int32: rows of the templates; `issame` (P,) bool."""

    left: np.ndarray
    right: np.ndarray
    issame: np.ndarray


def read_pairs(path: str | os.PathLike, template_ids: np.ndarray) -> Pairs:
    """The pairs of `*_template_pair_label.txt`: template, template, 1 for the same person or 0.

    `template_ids` (T,) ascends. 9 bytes a pair are kept. Raises ValueError naming file and line for a line that is no
    such pair, and for pairs of one kind only; OSError if the file cannot be read.
    """
    lefts, rights, labels = [], [], []
    line = 1
    with open(path, "rb") as file, progress(os.path.getsize(path), "B", "reading pairs") as bar:
        for block in whole_lines(file):
            rows = block_rows(block, template_ids)
            if rows is None:
                raise explain(block, path, line, template_ids)
            lefts.append(rows[:, 0].copy())
            rights.append(rows[:, 1].copy())
            labels.append(rows[:, 2] == 1)
            line += len(rows)
            bar.update(len(block))
    issame = np.concatenate(labels) if labels else np.empty(0, bool)
    if issame.all() or not issame.any():
        raise ValueError(
            f"{os.fspath(path)} must have pairs with label 1 and with label 0: its {len(issame):,} are of one kind"
        )
    return Pairs(np.concatenate(lefts), np.concatenate(rights), issame)


def whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Blocks of about BLOCK bytes that end with a line; empty lines at the end of the file are left out."""
    rest = b""
    while True:
        data = file.read(BLOCK)
        rest += data
        if not data:
            break
        # Empty lines wait until something follows, so that those at the end can be told from those between.
        end = rest.rstrip().rfind(b"\n") + 1
        if end:
            yield rest[:end]
            rest = rest[end:]
    rest = rest.rstrip()
    if rest:
        yield rest + b"\n"


def block_rows(block: bytes, template_ids: np.ndarray) -> np.ndarray | None:
    """(L, 3) int32 of the lines of a block: rows of both templates and the label. None if a line is no pair."""
    values = block_values(block)
    if values is None or values[:, 2].max() > 1:
        return None
    values[:, :2] = rows_of(values[:, :2], template_ids)
    return None if values.min() < 0 else values


def block_values(block: bytes) -> np.ndarray | None:
    """(L, 3) int32 of a block of lines with three whole numbers each, None if it is none."""
    data = np.frombuffer(block, np.uint8)
    digit = data - np.uint8(ord("0")) < 10  # smaller bytes wrap around to large ones
    newline = data == ord("\n")
    if not np.all(digit | newline | np.isin(data, np.frombuffer(SPACES, np.uint8))):
        return None
    edges = np.flatnonzero(np.diff(digit, prepend=False))  # a block ends with a newline, so every number has its end
    starts, ends = edges[0::2], edges[1::2]
    stops = np.flatnonzero(newline)
    if len(starts) != COLUMNS * len(stops):
        return None
    if np.any(starts[COLUMNS - 1 :: COLUMNS] > stops) or np.any(starts[COLUMNS::COLUMNS] < stops[:-1]):
        return None  # as many numbers as three a line, but not three in each
    lengths = ends - starts
    return None if lengths.max() > MAX_DIGITS else numbers(data, ends, lengths).reshape(-1, COLUMNS)


def numbers(data: np.ndarray, ends: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """int32 values of decimal numbers in `data` that end before `ends` and have `lengths` digits."""
    values = np.zeros(len(ends), np.int32)
    for place in range(int(lengths.max())):
        digits = data[np.maximum(ends - 1 - place, 0)] - np.uint8(ord("0"))
        values += np.where(lengths > place, digits, 0).astype(np.int32) * np.int32(10**place)
    return values


def explain(block: bytes, path: str | os.PathLike, line: int, template_ids: np.ndarray) -> ValueError:
    """The error for the first line of a block, whose first is number `line`, that is no pair."""
    known = set(template_ids.tolist())
    spaces = bytes.maketrans(SPACES, b" " * len(SPACES))
    for number, text in enumerate(block.split(b"\n")[:-1], start=line):
        words = [word for word in text.translate(spaces).split(b" ") if word]
        what = fault(words, known)
        if what:
            return bad_line(path, number, what, text.decode("ascii", "backslashreplace"))
    raise AssertionError("a block without a bad line was refused")


def fault(words: list[bytes], known: set[int]) -> str:
    """What is wrong with the words of a line, "" if nothing."""
    if len(words) != COLUMNS:
        return f"{len(words)} columns instead of 3 (template template label)"
    if not all(word.isdigit() and len(word) <= MAX_DIGITS for word in words):
        return f"a pair is three whole numbers of at most {MAX_DIGITS} digits"
    if int(words[2]) > 1:
        return "the label must be 1 for the same person or 0"
    unknown = [word for word in words[:2] if int(word) not in known]
    return f"the list of faces has no template {int(unknown[0])}" if unknown else ""
