"""Reads the lines of a protocol's text files; errors name file and line."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

MAX_DIGITS = 9  # of an id, so that it fits into int32; the largest id of IJB-C has six digits
MAX_SHOWN = 60  # characters of an invalid line in an error message


def read_columns(path: str | os.PathLike, columns: str) -> Iterator[tuple[int, list[str]]]:
    """Yields (line number from 1, values) for each line of a file with the given, space-separated column names.

    Raises:
        ValueError: A line has another number of values. The message names file and line.
        OSError: The file cannot be read.
    """
    count = len(columns.split())
    # Image names may have any encoding; surrogateescape passes their bytes on to the file system.
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        blank = None
        for number, line in enumerate(file, start=1):
            values = line.split()
            if not values:  # editors leave blank lines at the end
                blank = blank or number
                continue
            if blank:
                raise bad_line(path, blank, "blank line before the end of the file", "")
            if len(values) != count:
                raise bad_line(path, number, f"{len(values)} columns instead of {count} ({columns})", line)
            yield number, values


def bad_line(path: str | os.PathLike, number: int, problem: str, line: str) -> ValueError:
    """Returns the error for an invalid line, including the start of the line."""
    shown = line.strip()
    if len(shown) > MAX_SHOWN:
        shown = shown[:MAX_SHOWN] + "..."
    return ValueError(f"{os.fspath(path)}, line {number}: {problem}: {shown!r}")


def is_id(text: str) -> bool:
    """Returns whether a text is a valid id of a template, media or subject."""
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS


def rows_of(ids: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Returns int32 positions of ``ids`` in the ascending array ``known``; -1 for unknown ids."""
    rows = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    return np.where(known[rows] == ids, rows, -1).astype(np.int32)
