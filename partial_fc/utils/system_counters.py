"""What the system counts for this process and for its host."""

import os


def disk_bytes(path: str = "/proc/self/io") -> int | None:
    """Returns the bytes read from the disk for this process so far; None if the system does not count them."""
    return next((numbers[0] for numbers in _numbers_in(path, "read_bytes:")), None)


def idle_seconds(path: str = "/proc/stat") -> float | None:
    """Returns the idle time of this host's cores so far, summed; None if the system does not count it."""
    idle = next((sum(numbers[3:5]) for numbers in _numbers_in(path, "cpu ")), 0)  # idle, waiting for a disk
    return idle / os.sysconf("SC_CLK_TCK") if idle else None  # in some sandboxes all numbers of the file are zero


def _numbers_in(path: str, name: str) -> list[list[int]]:
    try:
        with open(path, encoding="ascii") as file:
            return [list(map(int, line.split()[1:])) for line in file if line.startswith(name)]
    except OSError:
        return []
