"""Tables of what was looked at: a mark, what it is, what was found, and the mend where one is needed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

MARKS = {"ok": "[ok]", "warn": "[warn]", "bad": "[bad]"}


class Row(NamedTuple):
    mark: str  # ok, warn or bad
    what: str
    found: str
    mend: str = ""


def lines(row: Row) -> list[str]:
    """The row as it is printed; its mend stands on a line of its own."""
    mend = [f"{'':20} -> {row.mend}"] if row.mend else []
    return [f"{MARKS[row.mark]:7} {row.what:12} {row.found}", *mend]


def show(rows: Iterable[Row]) -> None:
    for row in rows:
        print(*lines(row), sep="\n")


def bad(rows: Iterable[Row]) -> list[str]:
    """What needs mending, by name."""
    return [row.what for row in rows if row.mark == "bad"]
