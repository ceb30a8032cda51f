"""Counters of the operating system for this process and its host."""

import os


def disk_bytes(path: str = "/proc/self/io") -> int | None:
    """Returns the bytes that this process has read from disk; None if the system does not count them."""
    return next((numbers[0] for numbers in _numbers_in(path, "read_bytes:")), None)


def bytes_moved_by_others() -> int:
    """Returns the bytes that the other threads of this process have read and written, through pipes and sockets too.

    The result is 0 if the system does not count them, and up to some hundred bytes too low.
    """
    of_process, of_thread = (
        sum(numbers[0] for name in ("rchar:", "wchar:") for numbers in _numbers_in(f"/proc/{who}/io", name))
        for who in ("self", "thread-self")
    )
    return max(0, of_process - of_thread)


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
