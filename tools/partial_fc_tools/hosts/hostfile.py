"""Hosts and their numbers of ranks, from a hostfile, or from a list as for `mpirun -host` and `horovodrun -H`."""

import re
from collections.abc import Iterable
from typing import NamedTuple

# `name`, `name:8` or `name slots=8`. Open MPI's max_slots may follow, which does not change the number of ranks.
ENTRY = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9.-]*)(?: ?: ?(?P<count>\d+)| slots ?= ?(?P<slots>\d+))?(?: max[-_]slots ?= ?\d+)?"
)


class Host(NamedTuple):
    """A host and the ranks that it runs."""

    name: str  # or address
    slots: int  # number of ranks; 0 for a host that only launches the training


def read_hostfile(path: str) -> list[Host]:
    """Reads a hostfile. A name without a number means one rank each time it is listed.

    Raises:
        ValueError: A line cannot be parsed, or the file lists no host.
        OSError: The file cannot be read.
    """
    with open(path, encoding="utf-8-sig", errors="replace") as stream:
        lines = {f"{path} line {number}": line.partition("#")[0] for number, line in enumerate(stream, 1)}
    hosts = _merge((where, line) for where, line in lines.items() if line.strip())
    if not hosts:
        raise ValueError(f"{path} lists no host: write one per line, such as  10.0.0.1 slots=8")
    return hosts


def read_list(text: str) -> list[Host]:
    """Parses ``hosta:2,hostb:2``. The default count is 1, and counts of the same host are added."""
    return _merge((f"the host list {text!r}", entry) for entry in text.split(","))


def _merge(entries: Iterable[tuple[str, str]]) -> list[Host]:
    """Parses pairs of (position for error messages, entry), and adds the ranks of each host."""
    slots: dict[str, int] = {}
    for where, entry in entries:
        match = ENTRY.fullmatch(" ".join(entry.split()))
        count = int(match["count"] or match["slots"] or 1) if match else 0
        if not match or not count:
            raise ValueError(
                f"{where}: cannot parse {entry.strip()!r}: write hosta:8 or, in a file, hosta slots=8, without _ in "
                "names; users and ports belong in ~/.ssh/config"
            )
        slots[match["name"]] = slots.get(match["name"], 0) + count
    return [Host(name, count) for name, count in slots.items()]
