"""Tables of text: aligned columns for a terminal, Markdown, and CSV."""

import csv
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any, TextIO

from .text import is_hidden, one_line

FORMULA = ("=", "+", "-", "@", "\t")  # the beginnings of what spreadsheets compute


def format_table(rows: Sequence[Sequence[str]], gap: int = 2, min_widths: Sequence[int] = ()) -> list[str]:
    """Align columns, the first one to the left and the others to the right; the heading is the first row.

    ``min_widths`` are for several tables that are printed below each other.
    """
    rows = [list(map(one_line, row)) for row in rows]
    needed = [max(map(len, column)) for column in zip(*rows)]
    widths = [max(pair) for pair in zip_longest(needed, min_widths, fillvalue=0)]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:]))]
        lines.append((" " * gap).join(cells).rstrip())
    return lines


def markdown_table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table; columns of numbers are aligned to the right, the first column never is."""
    columns = list(zip(*rows))[1:]
    # A cell without a number, or beginning with one.
    numeric = (all(cell in ("", "-") or cell.lstrip("+-")[:1].isdigit() for cell in column) for column in columns)
    rules = [":---", *("---:" if each else ":---" for each in numeric)]
    return [
        "| " + " | ".join(heading) + " |",
        "|" + "|".join(rules) + "|",
        *("| " + " | ".join(map(one_line, row)) + " |" for row in rows),
    ]


class CsvWriter:
    """Writes the rows of a CSV file that people open: a text that a spreadsheet would compute gets a quote before it.

    Numbers stay as they are. No command reads these files.

    Args:
        file: opened with ``newline=""``.
    """

    def __init__(self, file: TextIO):
        self._writer = csv.writer(file, lineterminator="\n")

    def writerow(self, row: Iterable[Any]) -> None:
        """Writes a row."""
        self._writer.writerow([_as_text(cell) if isinstance(cell, str) else cell for cell in row])


def _as_text(cell: str) -> str:
    # csv does not quote a carriage return that its lines do not end with. In half of Europe a semicolon begins a cell.
    parts = cell.replace("\r", "\\r").split(";")
    return ";".join(f"'{part}" if _is_formula(part) else part for part in parts)


def _is_formula(cell: str) -> bool:
    # Some spreadsheets skip what cannot be seen, and take wide and small signs for the usual ones.
    seen = (character for character in cell if not character.isspace() and not is_hidden(character))
    if not cell.startswith(FORMULA) and not unicodedata.normalize("NFKC", next(seen, "")).startswith(FORMULA):
        return False
    try:
        float(cell)
    except ValueError:
        return True
    return False
