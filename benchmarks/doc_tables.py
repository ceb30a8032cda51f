"""Tables in a Markdown file that are made by a program: what stands between two comments is replaced."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

MARKS = "<!-- {}: made by {} -->", "<!-- end -->"


def put(path: Path, name: str, program: str, lines: Sequence[str]) -> None:
    """Replaces what the file has under that name.

    Raises:
        ValueError: it has no such place.
    """
    text = path.read_text()
    begin, end = MARKS[0].format(name, program), MARKS[1]
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"{path} has no place {begin} ... {end}")
    path.write_text("\n".join([before + begin, *lines, ended + after]))
