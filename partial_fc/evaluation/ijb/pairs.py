"""Reads the list of pairs (15,658,489 lines in IJB-C) in blocks, each parsed with vectorized NumPy operations.

Shapes: P pairs, T templates; of a block, L lines.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

from partial_fc.utils.progress import progress

from .text_files import MAX_DIGITS, bad_line, rows_of

BLOCK = 1 << 22  # bytes: about 300,000 lines, whose arrays take 60 MB
SPACES = b" \t\r"
COLUMNS = 3


class Pairs(NamedTuple):
    """Pairs of templates.

    Attributes:
        left: (P,) int32 rows of the templates.
        right: (P,) int32 rows of the templates.
        issame: (P,) bool, whether both show the same person.
    """

    left: np.ndarray
    right: np.ndarray
    issame: np.ndarray


def read_pairs(path: str | os.PathLike, template_ids: np.ndarray) -> Pairs:
    """Reads ``*_template_pair_label.txt``: template, template, 1 for the same person or 0. Keeps 9 bytes per pair.

    Args:
        path: The file.
        template_ids: (T,) ids of the protocol's templates, ascending.

    Raises:
        ValueError: A line is not such a pair (the message names file and line), or all labels are equal.
        OSError: The file cannot be read.
    """
    lefts, rights, labels = [], [], []
    line = 1
    with open(path, "rb") as file, progress(os.path.getsize(path), "B", "reading pairs") as bar:
        for block in whole_lines(file):
            rows = block_rows(block, template_ids)
            if rows is None:
                raise block_error(block, path, line, template_ids)
            lefts.append(rows[:, 0].copy())
            rights.append(rows[:, 1].copy())
            labels.append(rows[:, 2] == 1)
            line += len(rows)
            bar.update(len(block))
    issame = np.concatenate(labels) if labels else np.empty(0, bool)
    if issame.all() or not issame.any():
        raise ValueError(
            f"{os.fspath(path)} must contain pairs with label 1 and pairs with label 0: all {len(issame):,} are equal"
        )
    return Pairs(np.concatenate(lefts), np.concatenate(rights), issame)


def whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yields blocks of about BLOCK bytes that end at a line end, without empty lines at the end of the file."""
    rest = b""
    while True:
        data = file.read(BLOCK)
        rest += data
        if not data:
            break
        # Empty lines stay in `rest` until text follows: only those at the end of the file are allowed.
        end = rest.rstrip().rfind(b"\n") + 1
        if end:
            yield rest[:end]
            rest = rest[end:]
    rest = rest.rstrip()
    if rest:
        yield rest + b"\n"


def block_rows(block: bytes, template_ids: np.ndarray) -> np.ndarray | None:
    """Returns (L, 3) int32: rows of both templates and the label. None if a line is not a valid pair."""
    values = block_values(block)
    if values is None or values[:, 2].max() > 1:
        return None
    values[:, :2] = rows_of(values[:, :2], template_ids)
    return None if values.min() < 0 else values


def block_values(block: bytes) -> np.ndarray | None:
    """Returns (L, 3) int32: the numbers of a block. None if a line does not consist of three whole numbers."""
    data = np.frombuffer(block, np.uint8)
    digit = data - np.uint8(ord("0")) < 10  # unsigned: bytes below "0" wrap around to large values
    newline = data == ord("\n")
    if not np.all(digit | newline | np.isin(data, np.frombuffer(SPACES, np.uint8))):
        return None
    edges = np.flatnonzero(np.diff(digit, prepend=False))  # a block ends with a newline, so every number has an end
    starts, ends = edges[0::2], edges[1::2]
    stops = np.flatnonzero(newline)
    if len(starts) != COLUMNS * len(stops):
        return None
    if np.any(starts[COLUMNS - 1 :: COLUMNS] > stops) or np.any(starts[COLUMNS::COLUMNS] < stops[:-1]):
        return None  # three numbers per line on average, but not in each
    lengths = ends - starts
    return None if lengths.max() > MAX_DIGITS else parse_numbers(data, ends, lengths).reshape(-1, COLUMNS)


def parse_numbers(data: np.ndarray, ends: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns int32 values of the decimal numbers in ``data`` that end before ``ends`` and have ``lengths`` digits."""
    values = np.zeros(len(ends), np.int32)
    for place in range(int(lengths.max())):
        digits = data[np.maximum(ends - 1 - place, 0)] - np.uint8(ord("0"))
        values += np.where(lengths > place, digits, 0).astype(np.int32) * np.int32(10**place)
    return values


def block_error(block: bytes, path: str | os.PathLike, line: int, template_ids: np.ndarray) -> ValueError:
    """Returns the error for the first invalid line of a block that begins at line number ``line``."""
    known = set(template_ids.tolist())
    spaces = bytes.maketrans(SPACES, b" " * len(SPACES))
    for number, text in enumerate(block.split(b"\n")[:-1], start=line):
        values = [value for value in text.translate(spaces).split(b" ") if value]
        problem = line_problem(values, known)
        if problem:
            return bad_line(path, number, problem, text.decode("ascii", "backslashreplace"))
    raise AssertionError("a block without an invalid line was refused")


def line_problem(values: list[bytes], known: set[int]) -> str:
    """Returns the problem with the values of a line, "" if there is none."""
    if len(values) != COLUMNS:
        return f"{len(values)} columns instead of 3 (template template label)"
    if not all(value.isdigit() and len(value) <= MAX_DIGITS for value in values):
        return f"a pair must be three whole numbers of at most {MAX_DIGITS} digits"
    if int(values[2]) > 1:
        return "the label must be 1 for the same person or 0"
    unknown = [value for value in values[:2] if int(value) not in known]
    return f"unknown template {int(unknown[0])}: it has no faces" if unknown else ""
