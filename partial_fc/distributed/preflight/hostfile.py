"""Which hosts, and how many ranks on each: Open MPI's hostfiles, and the lists of `mpirun -host` and `horovodrun -H`.

What is read as what was tried with Open MPI 4.1.8:

    name slots=8     8 ranks; `cpu=` and `count=` are the same word, `max_slots=` stands in for it where it is alone
    name             as many as the host has cores; named n times: n
    name slots=4     a second time: refused
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

SLOTS = ("slots", "cpu", "count")
LIMITS = ("max_slots", "max-slots", "maxslots", "cpu_max", "cpu-max", "cpumax", "count_max", "count-max", "countmax")
NAME = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9.-]*)(?::(?P<slots>\d+))?")
WORD = re.compile(r"([\w-]+)\s*=\s*(\S+)")


class HostListError(ValueError):
    """Hosts that cannot be read; the message says where and what to write."""


class Host(NamedTuple):
    name: str
    slots: int | None  # ranks; None: as many as it has cores


def read_hostfile(path: str) -> list[Host]:
    """The hosts of a hostfile, each once, in its order.

    Raises:
        HostListError: a line that cannot be read, a host with two counts, no host at all.
        OSError: the file cannot be read.
    """
    found = []
    with open(path, encoding="utf-8-sig") as stream:
        for number, line in enumerate(stream, 1):
            text = " ".join(line.split("#")[0].split())
            if text:
                found.append(_read_line(text, f"{path} line {number}"))
    if not found:
        raise HostListError(f"{path} names no host: write one a line, such as  10.0.0.1 slots=8")
    return _joined(found, path)


def read_list(text: str) -> list[Host]:
    """The hosts of ``hosta:2,hostb:2``; without a count it is 1, and counts of the same host are added.

    Raises:
        HostListError: it cannot be read.
    """
    slots: dict[str, int] = {}
    for word in text.split(","):
        match = NAME.fullmatch(word.strip())
        if not match:
            raise HostListError(
                f"cannot read {word.strip()!r} of the hosts {text!r}: write hosta:2,hostb:2, no _ in names"
            )
        count = int(match["slots"] or 1)
        if not count:
            raise HostListError(f"{word.strip()} has no slot: write how many ranks it runs, such as hosta:2")
        slots[match["name"]] = slots.get(match["name"], 0) + count
    return [Host(name, count) for name, count in slots.items()]


def _read_line(text: str, where: str) -> Host:
    name, _, rest = text.partition(" ")
    match = NAME.fullmatch(name)
    words = dict(WORD.findall(rest))
    unread = WORD.sub("", rest).strip() or ", ".join(set(words) - {*SLOTS, *LIMITS})
    if "@" in name or "username" in words:
        raise HostListError(f"{where}: the user is set in ~/.ssh/config, by `Host` and `User`")
    if not match or unread:
        raise HostListError(f"{where}: cannot read {unread if match else name!r}: write  hosta slots=8")
    counts = [words[word] for word in (*SLOTS, *LIMITS) if word in words]
    count = counts[0] if counts else match["slots"]
    if count is not None and not (count.isdecimal() and int(count)):
        raise HostListError(f"{where}: slots={count} is no number of ranks: write  {name} slots=8")
    return Host(match["name"], None if count is None else int(count))


def _joined(found: Iterable[Host], path: str) -> list[Host]:
    hosts: dict[str, list[Host]] = {}
    for host in found:
        hosts.setdefault(host.name, []).append(host)
    for name, same in hosts.items():
        if len(same) > 1 and any(host.slots is not None for host in same):
            raise HostListError(f"{path} names {name} {len(same)} times: give it one line with all its slots")
    return [same[0] if len(same) == 1 else same[0]._replace(slots=len(same)) for same in hosts.values()]
