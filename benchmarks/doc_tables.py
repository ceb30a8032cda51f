"""Generated tables in Markdown files, between two comments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

MARKS = "<!-- {}: made by {} -->", "<!-- end -->"


def put(path: Path, name: str, program: str, lines: Sequence[str]) -> None:
    """Replaces the lines between the comments of a table.

    Args:
        path: the Markdown file.
        name: name of the table.
        program: the program that generates it, as the comment names it.
        lines: the table.

    Raises:
        ValueError: the file has no comments for this table.
    """
    text = path.read_text()
    begin, end = MARKS[0].format(name, program), MARKS[1]
    before, begins, rest = text.partition(begin)
    _, ends, after = rest.partition(end)
    if not begins or not ends:
        raise ValueError(f"{path} has no lines {begin} ... {end}: add them where the table belongs")
    path.write_text("\n".join([before + begin, *lines, end + after]))
