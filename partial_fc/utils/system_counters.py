"""Counters of the operating system for this process and its host."""

import os


def disk_bytes(path: str = "/proc/self/io") -> int | None:
    """Returns the bytes that this process has read from disk; None if the system does not count them."""
    return next((numbers[0] for numbers in _numbers_in(path, "read_bytes:")), None)


def idle_seconds(path: str = "/proc/stat") -> float | None:
    """Returns the idle time since boot, summed over all cores; None if the system does not count it."""
    idle = next((sum(numbers[3:5]) for numbers in _numbers_in(path, "cpu ")), 0)  # idle and waiting for a disk
    return idle / os.sysconf("SC_CLK_TCK") if idle else None  # some sandboxes show only zeros


def _numbers_in(path: str, name: str) -> list[list[int]]:
    try:
        with open(path, encoding="ascii") as file:
            return [list(map(int, line.split()[1:])) for line in file if line.startswith(name)]
    except OSError:
        return []
