"""Hosts and their numbers of ranks, from an Open MPI hostfile or a list as for `mpirun -host` and `horovodrun -H`.

Lines are interpreted as Open MPI 4.1.8 does:

    name slots=8     8 ranks; `cpu=` and `count=` are synonyms, `max_slots=` counts if it stands alone
    name             as many ranks as the host has cores; a name listed n times: n ranks
    name slots=4     an error if the name is already listed
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

SLOTS = ("slots", "cpu", "count")
LIMITS = ("max_slots", "max-slots", "maxslots", "cpu_max", "cpu-max", "cpumax", "count_max", "count-max", "countmax")
NAME = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9.-]*)(?::(?P<slots>\d+))?")
OPTION = re.compile(r"([\w-]+)\s*=\s*(\S+)")


class HostListError(ValueError):
    """A host list that cannot be parsed; the message says where the error is and what to write."""


class Host(NamedTuple):
    """A host and the ranks that it runs.

    Attributes:
        name: Name or address.
        slots: Number of ranks; None for as many as the host has cores.
    """

    name: str
    slots: int | None


def read_hostfile(path: str) -> list[Host]:
    """Read the hosts of a hostfile, each once, in the order of the file.

    Raises:
        HostListError: A line cannot be parsed, a host has two counts, or the file lists no host.
        OSError: The file cannot be read.
    """
    hosts = []
    with open(path, encoding="utf-8-sig") as stream:
        for number, line in enumerate(stream, 1):
            text = " ".join(line.split("#")[0].split())
            if text:
                hosts.append(_parse_line(text, f"{path} line {number}"))
    if not hosts:
        raise HostListError(f"{path} names no host: write one per line, such as  10.0.0.1 slots=8")
    return _merge(hosts, path)


def read_list(text: str) -> list[Host]:
    """Parse ``hosta:2,hostb:2``. The default count is 1; the counts of a host that is listed again are added.

    Raises:
        HostListError: The list cannot be parsed.
    """
    slots: dict[str, int] = {}
    for entry in map(str.strip, text.split(",")):
        match = NAME.fullmatch(entry)
        if not match:
            raise HostListError(
                f"cannot parse {entry!r} in the host list {text!r}: write hosta:2,hostb:2, no _ in names"
            )
        count = int(match["slots"] or 1)
        if not count:
            raise HostListError(f"{entry} has no slot: write the number of its ranks, such as hosta:2")
        slots[match["name"]] = slots.get(match["name"], 0) + count
    return [Host(name, count) for name, count in slots.items()]


def _parse_line(text: str, where: str) -> Host:
    name, _, rest = text.partition(" ")
    match = NAME.fullmatch(name)
    options = dict(OPTION.findall(rest))
    unknown = OPTION.sub("", rest).strip() or ", ".join(set(options) - {*SLOTS, *LIMITS})
    if "@" in name or "username" in options:
        raise HostListError(f"{where}: set the user in ~/.ssh/config, with `Host` and `User`")
    if not match or unknown:
        raise HostListError(f"{where}: cannot parse {unknown if match else name!r}: write  hosta slots=8")
    counts = [options[option] for option in (*SLOTS, *LIMITS) if option in options]
    count = counts[0] if counts else match["slots"]
    if count is not None and not (count.isdecimal() and int(count)):
        raise HostListError(f"{where}: slots={count} is not a number of ranks: write  {name} slots=8")
    return Host(match["name"], None if count is None else int(count))


def _merge(entries: Iterable[Host], path: str) -> list[Host]:
    """Merge the entries of the same name.

    Raises:
        HostListError: A name with slots is listed twice.
    """
    hosts: dict[str, list[Host]] = {}
    for host in entries:
        hosts.setdefault(host.name, []).append(host)
    for name, same in hosts.items():
        if len(same) > 1 and any(host.slots is not None for host in same):
            raise HostListError(f"{path} names {name} {len(same)} times: give it one line with all its slots")
    return [same[0] if len(same) == 1 else same[0]._replace(slots=len(same)) for same in hosts.values()]
