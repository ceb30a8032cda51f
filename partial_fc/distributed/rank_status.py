"""A small folder in which the ranks of a job leave word of where they are, for when one of them is lost.

Each rank overwrites one small record of its own. Horovod cannot be asked who is missing: it waits, or is gone.
Times are seconds since 1970.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

PREFIX = ".job-"
TOLD = "told"
LENGTH = 384  # bytes of a record, all that is read of one
# What lies there from before is of an earlier job that had the same key: ranks of one job start within minutes.
STALE = 900.0


class Record(NamedTuple):
    """Where a rank is.

    ``started`` tells its process from a later one with the same id, ``moved`` is when the record was last changed.
    """

    rank: int
    host: str
    pid: int
    started: int
    num_update: int
    doing: str
    waiting: bool
    ended: bool
    moved: float


def job_key(environment: Mapping[str, str], pid: int) -> str:
    """What only the processes of this job have in common, on all its hosts.

    Args:
        environment: as the launcher has made it.
        pid: of a process that was started without one, and is a job by itself.
    """
    # Of mpirun: 128 bits drawn for each job.
    key = environment.get("OMPI_MCA_orte_precondition_transports") or environment.get("PMIX_NAMESPACE")
    if not key and "HOROVOD_GLOO_RENDEZVOUS_PORT" in environment:
        key = f"{environment.get('HOROVOD_GLOO_RENDEZVOUS_ADDR')}-{environment['HOROVOD_GLOO_RENDEZVOUS_PORT']}"
    return "".join(c if c.isalnum() or c in ".-" else "-" for c in key) if key else f"alone-{pid}"


class RankStatusStore:
    """The records of a job, seen from one rank. Nothing here fails: who cannot write is missing on the board.

    Args:
        root: where the folder is made, on a disk that all hosts see; where it is not, hosts see their own ranks.
        key: of the job, see job_key.
        rank: this one.
    """

    def __init__(self, root: str, key: str, rank: int):
        self.path = os.path.join(root, PREFIX + key)
        self.rank, self.host, self.pid = rank, socket.gethostname(), os.getpid()
        self._started = process_state(self.pid)[1]
        self._since = time.time() - STALE
        self._claimed = False
        self._file: int | None = None
        with suppress(OSError):
            os.makedirs(root, exist_ok=True)
            remove_dead(root, self.host, but=self.path)
            os.makedirs(self.path, exist_ok=True)
            told = os.path.join(self.path, TOLD)
            if os.path.exists(told) and os.path.getmtime(told) < self._since:
                os.remove(told)
            name = os.path.join(self.path, f"{rank}@{self.host}")
            self._file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)

    def write(self, num_update: int, doing: str, waiting: bool, ended: bool = False) -> None:
        """Overwrites this rank's record."""
        if self._file is None:
            return
        fields = [self.rank, self.host, self.pid, self._started, num_update, doing[:99], waiting, ended, time.time()]
        with suppress(OSError):
            os.pwrite(self._file, json.dumps(fields).encode().ljust(LENGTH), 0)

    def records(self, host: str | None = None) -> list[Record]:
        """What the ranks have written, by rank; of one host only, if it is given."""
        found = []
        with suppress(OSError):
            for name in os.listdir(self.path):
                if name.partition("@")[2] == (host or name.partition("@")[2]) and "@" in name:
                    record = _read(os.path.join(self.path, name))
                    if record is not None and record.moved > self._since:
                        found.append(record)
        return sorted(found)

    def claim_error_report(self) -> bool:
        """Whether the caller is to tell how the job ends: True for the first of all ranks that asks, and only once."""
        if self._claimed:
            return False
        self._claimed = True
        try:
            os.close(os.open(os.path.join(self.path, TOLD), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        except FileExistsError:
            return False
        except OSError:
            pass  # told twice is better than never
        return True

    def told(self) -> bool:
        """Whether somebody tells, or has told."""
        return os.path.exists(os.path.join(self.path, TOLD))

    def leave(self, num_update: int, doing: str) -> None:
        """Notes that this rank has ended, and removes the folder if it is the last."""
        self.write(num_update, doing, waiting=False, ended=True)
        others = [record for record in self.records() if record.rank != self.rank]
        if all(record.ended or (record.host == self.host and is_gone(record)) for record in others):
            shutil.rmtree(self.path, ignore_errors=True)


def _read(path: str) -> Record | None:
    try:
        with open(path, "rb") as file:
            return Record(*json.loads(file.read(LENGTH)))
    except (OSError, ValueError, TypeError):  # it has gone, or is being made
        return None


def remove_dead(root: str, host: str, but: str) -> None:
    """Removes the boards of jobs that were killed, so that nobody was left to do it; all `but` one.

    Raises:
        OSError: the folder cannot be listed.
    """
    for name in os.listdir(root):
        path = os.path.join(root, name)
        if name.startswith(PREFIX) and path != but and os.path.isdir(path):
            files = [os.path.join(path, entry) for entry in os.listdir(path) if "@" in entry]
            if files and all(_is_dead(file, host) for file in files):
                shutil.rmtree(path, ignore_errors=True)


def _is_dead(path: str, host: str) -> bool:
    record = _read(path)
    if record is None:  # made but not written, by a rank that has been ended since, or that starts just now
        return os.path.getmtime(path) < time.time() - STALE
    # A rank that nobody here can look at has written within a day, whatever it does.
    return is_gone(record) if record.host == host else record.moved < time.time() - 86400


def process_state(pid: int) -> tuple[str, int]:
    """A process of this host: (its state as /proc has it, when it was started in ticks since boot); ("", 0): none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return "", 0
    return fields[0].decode(), int(fields[19])


def has_ended(pid: int, started: int) -> bool:
    """Whether a process of this host has ended, in whatever way."""
    state, now = process_state(pid)
    return state in ("", "Z", "X") or now != started


def is_gone(record: Record) -> bool:
    """Whether the process of a record of this host has ended."""
    return has_ended(record.pid, record.started)


def is_stopped(record: Record) -> bool:
    """Whether the process of a record of this host is held by SIGSTOP or a debugger."""
    return not is_gone(record) and process_state(record.pid)[0] in ("T", "t")
