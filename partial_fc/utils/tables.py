"""Tables of text: aligned columns for a terminal, Markdown, and CSV."""

import csv
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any, TextIO

from .text import is_hidden, one_line

FORMULA = ("=", "+", "-", "@", "\t")  # a cell that begins with one of these may be a formula


def format_table(rows: Sequence[Sequence[str]], gap: int = 2, min_widths: Sequence[int] = ()) -> list[str]:
    """Returns the lines of a table with aligned columns, the first one to the left and the others to the right.

    Args:
        rows: cells of each row; the first row is the heading.
        gap: spaces between columns.
        min_widths: minimum widths of the columns, to align several tables with each other.
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
    """Returns the lines of a Markdown table. Columns of numbers are aligned to the right, except the first column."""
    columns = list(zip(*rows))[1:]
    # In a column of numbers, each cell is empty or begins with a number.
    numeric = (all(cell in ("", "-") or cell.lstrip("+-")[:1].isdigit() for cell in column) for column in columns)
    rules = [":---", *("---:" if each else ":---" for each in numeric)]
    return [
        "| " + " | ".join(heading) + " |",
        "|" + "|".join(rules) + "|",
        *("| " + " | ".join(map(one_line, row)) + " |" for row in rows),
    ]


class CsvWriter:
    """Writes a CSV file for people: a text that a spreadsheet would evaluate as a formula is prefixed with a quote.

    Args:
        file: a text file, opened with ``newline=""``.
    """

    def __init__(self, file: TextIO):
        self._writer = csv.writer(file, lineterminator="\n")

    def writerow(self, row: Iterable[Any]) -> None:
        """Writes a row."""
        self._writer.writerow([_as_text(cell) if isinstance(cell, str) else cell for cell in row])


def _as_text(cell: str) -> str:
    # csv leaves carriage returns unquoted. Many European spreadsheets separate cells by semicolons.
    parts = cell.replace("\r", "\\r").split(";")
    return ";".join(f"'{part}" if _is_formula(part) else part for part in parts)


def _is_formula(cell: str) -> bool:
    # Some spreadsheets skip invisible characters, and accept full-width and small variants of the signs.
    visible = (character for character in cell if not character.isspace() and not is_hidden(character))
    if not cell.startswith(FORMULA) and not unicodedata.normalize("NFKC", next(visible, "")).startswith(FORMULA):
        return False
    try:
        float(cell)
    except ValueError:
        return True
    return False
