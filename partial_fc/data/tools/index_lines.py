"""Reads an `.idx` with invalid lines, which are reported.

Shapes: K valid lines.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator

import numpy as np

CHUNK = 8 << 20  # bytes of text parsed at once
LINE = re.compile(rb"(\d{1,18})[\t ]+(\d{1,18})\r?")
# Bytes of text that is parsed at once: digits, tab, line feed.
PLAIN = np.zeros(256, bool)
PLAIN[list(b"0123456789\t\n")] = True
TAB, LINE_FEED = b"\t\n"


class IndexLines:
    """The lines of an `.idx`.

    Attributes:
        keys, offsets: (K,) int64, in the order of the lines.
        bad: (line number from 1, text) of invalid lines.
    """

    def __init__(self, idx_path: str):
        self.bad: list[tuple[int, bytes]] = []
        tables = list(self._tables(idx_path)) or [np.empty((0, 2), np.int64)]
        # Two arrays, each joined from chunks, so that no second table of all lines exists.
        self.keys = np.concatenate([table[:, 0] for table in tables])
        self.offsets = np.concatenate([table[:, 1] for table in tables])

    def _tables(self, idx_path: str) -> Iterator[np.ndarray]:
        first = 1
        with open(idx_path, "rb") as file:
            for text in iter(lambda: file.read(CHUNK), b""):
                text += file.readline()
                lines = text.count(b"\n") + (not text.endswith(b"\n"))
                table = parse_plain(text, lines)
                yield self._parse_each(text, first) if table is None else table
                first += lines

    def _parse_each(self, text: bytes, first: int) -> np.ndarray:
        """Parses the valid lines to (K, 2) int64; adds the others to `bad`."""
        good = []
        for number, line in enumerate(text.rstrip(b"\n").split(b"\n"), start=first):
            match = LINE.fullmatch(line)
            if match:
                good.append((int(match[1]), int(match[2])))
            else:
                self.bad.append((number, line))
        return np.array(good, np.int64).reshape(-1, 2)


def parse_plain(text: bytes, lines: int) -> np.ndarray | None:
    """Parses text of valid lines to (lines, 2) int64; returns None if there may be an invalid one."""
    characters = np.frombuffer(text, np.uint8)
    if not PLAIN[characters].all():
        return None
    separators = characters[(characters == TAB) | (characters == LINE_FEED)]
    if not text.endswith(b"\n"):
        separators = np.append(separators, LINE_FEED)
    if len(separators) != 2 * lines or (separators[::2] != TAB).any() or (separators[1::2] != LINE_FEED).any():
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        numbers = np.fromstring(text, dtype=np.int64, sep=" ")
    return numbers.reshape(-1, 2) if len(numbers) == 2 * lines else None
