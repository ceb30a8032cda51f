"""Tables of text: aligned columns for a terminal, and Markdown."""

from collections.abc import Sequence
from itertools import zip_longest


def format_table(rows: Sequence[Sequence[str]], gap: int = 2, min_widths: Sequence[int] = ()) -> list[str]:
    """Align columns, the first one to the left and the others to the right; the heading is the first row.

    ``min_widths`` are for several tables that are printed below each other.
    """
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
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
