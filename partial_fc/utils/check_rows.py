"""One result of a check, as a row: whether it passed, what was checked, what was found, and how to fix it."""

from collections.abc import Iterable
from typing import NamedTuple

from partial_fc.utils.text import say


class Row(NamedTuple):
    """The result of one check."""

    mark: str  # "ok", "warn" or "bad"; only "bad" keeps a training from starting
    what: str  # name of the check
    found: str
    fix: str = ""  # how to fix it; empty if there is nothing to fix


def print_rows(rows: Iterable[Row]) -> None:
    """Print the rows to the standard output; the fix has its own line."""
    for row in rows:
        say(f"{f'[{row.mark}]':7} {row.what:12} {row.found}")
        if row.fix:
            say(f"{'':20} -> {row.fix}")


def failed_checks(rows: Iterable[Row]) -> list[str]:
    """Names of the checks whose rows are marked "bad"."""
    return [row.what for row in rows if row.mark == "bad"]
