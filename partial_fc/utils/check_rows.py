"""Results of checks as rows: whether a check passed, what it found, and how to fix it."""

from collections.abc import Iterable
from typing import NamedTuple

from partial_fc.utils.text import say


class Row(NamedTuple):
    """The result of a check."""

    mark: str  # "ok", "warn" or "bad"; only "bad" prevents a training
    what: str  # name of the check
    found: str
    fix: str = ""  # how to fix it, if needed


def print_rows(rows: Iterable[Row]) -> None:
    """Prints the rows to standard output, each fix on its own line."""
    for row in rows:
        say(f"{f'[{row.mark}]':7} {row.what:12} {row.found}")
        if row.fix:
            say(f"{'':20} -> {row.fix}")


def failed_checks(rows: Iterable[Row]) -> list[str]:
    """Returns the names of the checks marked "bad"."""
    return [row.what for row in rows if row.mark == "bad"]
