"""The record of one rank: its fields, how it is read, and what it says about the process."""

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from .processes import has_ended, process_state

LENGTH = 1024  # bytes of a record, all that is read of one
# Nothing is followed, or waited for, if it is something else than a file.
FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Record(NamedTuple):
    """The status of a rank."""

    rank: int
    host: str
    boot: str  # id of the boot of its host
    pid: int
    started: int  # start time of its process, which tells it from a later process with the same id
    attempt: str  # the drawn name; "" until the ranks have met
    met: float  # when they met, seconds since the boot of its host; 0 until then
    num_update: int  # the last update; -1 before training
    doing: str  # what the main thread does
    waiting: bool  # whether it waits for other ranks there
    ended: bool  # whether the rank ended as it should, or after it reported an error
    # When it last made progress: seconds since the boot of its host; in RankStatusStore.records(), of the reader's.
    progress_time: float
    namespace: str = ""  # of its process id, see pid_namespace


def since_boot() -> float:
    """Returns the seconds since this host booted, which no change of the time of day affects."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Returns what tells this boot of this host from all others; "" where ``/proc`` does not show it."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return ""


def pid_namespace() -> str:
    """Returns what tells apart the containers of a host whose process ids mean nothing to each other; "" if unknown."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def is_gone(record: Record) -> bool:
    """Returns whether the process of a record of this host and namespace has ended."""
    return has_ended(record.pid, record.started)


def is_stopped(record: Record) -> bool:
    """Returns whether the process of a record of this host is stopped by SIGSTOP or a debugger."""
    return not is_gone(record) and process_state(record.pid)[0] in ("T", "t")


def is_own(file: int, owner: int) -> bool:
    """Returns whether an open file is of this owner."""
    return os.fstat(file).st_uid == owner


def read_record(name: str, folder: int | None, owner: int) -> Record | None:
    """Returns the record in a file of a folder; None if it was removed or not written yet, or if it is not valid."""
    try:
        file = os.open(name, os.O_RDONLY | FLAGS, dir_fd=folder)
        try:
            if not is_own(file, owner):
                return None
            record = Record(*json.loads(os.pread(file, LENGTH, 0)))
        finally:
            os.close(file)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return record if _is_valid(record) and name == f"{record.rank}@{record.host}" else None


def _is_valid(record: Record) -> bool:
    """Whether all fields have their types, and the numbers those that a process can have: kill(-1) ends everything."""
    seconds = (int, float)
    types: Sequence[Any] = (int, str, str, int, int, str, seconds, int, str, bool, bool, seconds, str)
    numbers = (record.rank, record.pid, record.started, record.num_update, record.met, record.progress_time)
    typed = all(isinstance(field, kind) for field, kind in zip(record, types))
    if not typed or any(isinstance(number, bool) for number in numbers):
        return False
    return min(record.rank, record.started) >= 0 and record.pid > 1 and all(abs(number) < 2**53 for number in numbers)
