"""Lines of the protocol's text files, and errors that name them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

MAX_DIGITS = 9  # of an id, so that it fits into int32; IJB-C's largest has six
SHOWN = 60  # characters of a bad line that an error shows


def read_words(path: str | os.PathLike, columns: str) -> Iterator[tuple[int, list[str]]]:
    """(line number from 1, words) of each line of a file whose columns are named in `columns`.

    Raises ValueError for a line with another number of words, OSError if the file cannot be read.
    """
    count = len(columns.split())
    # Names of images may be in any encoding; the file system takes such characters back as they came.
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        blank = None
        for number, line in enumerate(file, start=1):
            words = line.split()
            if not words:  # well at the end, as editors leave it
                blank = blank or number
                continue
            if blank:
                raise bad_line(path, blank, "a blank line before the end", "")
            if len(words) != count:
                raise bad_line(path, number, f"{len(words)} columns instead of {count} ({columns})", line)
            yield number, words


def bad_line(path: str | os.PathLike, number: int, what: str, line: str) -> ValueError:
    """The error for a line, with what stands there."""
    shown = line.strip()
    if len(shown) > SHOWN:
        shown = shown[:SHOWN] + "..."
    return ValueError(f"{os.fspath(path)}, line {number}: {what}: {shown!r}")


def is_id(word: str) -> bool:
    """Whether a word is a whole number as templates, media and subjects have."""
    return word.isascii() and word.isdigit() and len(word) <= MAX_DIGITS


def rows_of(ids: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Where each of `ids` stands in `known`, which ascends; int32, -1 for those that are not there."""
    rows = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    return np.where(known[rows] == ids, rows, -1).astype(np.int32)
