"""A folder in which each rank records its status, so that the others can name it when it is lost.

Each rank overwrites one small record of its own. Horovod cannot be asked which rank is missing: it waits, or has
shut down. Times are seconds since 1970.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from .errors import FAILED
from .processes import has_ended, process_state, started_at

PREFIX = ".job-"
REPORTED = "error_reported"  # the file that the rank creates which reports why the job ends; holds its exit code
WRITTEN_WITHIN = 0.2  # seconds from the creation of this file until it has content
LENGTH = 384  # bytes of a record, all that is read of one
# An older file in the folder is of an earlier job with the same key: the ranks of one job start within minutes.
STALE = 900.0


class Record(NamedTuple):
    """The status of a rank.

    Attributes:
        rank: of the job.
        host: name of its host.
        pid: of its process.
        started: start time of its process, which tells it from a later process with the same id.
        num_update: the last update; -1 before training.
        doing: what the main thread does.
        waiting: whether it waits for other ranks there.
        ended: whether the rank ended as it should, or after it reported an error.
        progress_time: when the rank last made progress.
    """

    rank: int
    host: str
    pid: int
    started: int
    num_update: int
    doing: str
    waiting: bool
    ended: bool
    progress_time: float


def job_key(environment: Mapping[str, str], pid: int) -> str:
    """Returns a name that only the processes of this job share, on all its hosts; a restart by torchrun is another job.

    The hosts of an elastic job may count its restarts differently. Then each sees its own ranks only.

    Args:
        environment: as set by the launcher.
        pid: of this process, which is a job by itself if no launcher started it.
    """
    if "TORCHELASTIC_RUN_ID" in environment:  # first, as in env.rank_info; it is "none" with a fixed address and port
        names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE")
        return _as_name("-".join(environment.get(name, "") for name in names))
    # mpirun draws 128 random bits for each job.
    key = environment.get("OMPI_MCA_orte_precondition_transports") or environment.get("PMIX_NAMESPACE")
    if not key and "HOROVOD_GLOO_RENDEZVOUS_PORT" in environment:
        key = f"{environment.get('HOROVOD_GLOO_RENDEZVOUS_ADDR')}-{environment['HOROVOD_GLOO_RENDEZVOUS_PORT']}"
    return _as_name(key) if key else f"alone-{pid}"


def _as_name(key: str) -> str:
    """Returns the key as the name of a folder."""
    return "".join(c if c.isalnum() or c in ".-" else "-" for c in key)


class RankStatusStore:
    """The records of all ranks of a job. No method fails: a rank that cannot write has no record.

    Args:
        root: where the folder is made, on a disk that all hosts share; otherwise each host sees its own ranks only.
        key: of the job, see job_key.
        rank: of this process.

    Attributes:
        num_update, doing, waiting: the status of this rank, see Record.
    """

    def __init__(self, root: str, key: str, rank: int):
        self.path = os.path.join(root, PREFIX + key)
        self.rank, self.host, self.pid = rank, socket.gethostname(), os.getpid()
        self.num_update, self.doing, self.waiting = -1, "startup", False
        self._root = root
        self._started = process_state(self.pid)[1]
        self._oldest = time.time() - STALE
        self._claimed = False
        self._file: int | None = None

    def open(self) -> RankStatusStore:
        """Creates the folder and the file of this rank, removes what earlier jobs left, and returns this store."""
        with suppress(OSError):
            os.makedirs(self._root, exist_ok=True)
            remove_dead(self._root, self.host, keep=self.path)
            os.makedirs(self.path, exist_ok=True)
            with suppress(FileNotFoundError):
                # An elastic job may have the same key when it grows again.
                if os.path.getmtime(self._path_of(REPORTED)) < started_at(self.pid):
                    os.remove(self._path_of(REPORTED))
            self._file = os.open(
                self._path_of(f"{self.rank}@{self.host}"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666
            )
        return self

    def update(self, doing: str | None = None, waiting: bool | None = None, num_update: int | None = None) -> None:
        """Records that this rank made progress, and what has changed in its status.

        Args:
            doing: what the main thread does; None as before.
            waiting: whether it waits for other ranks there; None as before.
            num_update: the last update; None as before.
        """
        self.doing = self.doing if doing is None else doing
        self.waiting = self.waiting if waiting is None else waiting
        self.num_update = self.num_update if num_update is None else num_update
        self._write(ended=False)

    def leave(self) -> None:
        """Records that this rank has ended, and removes the folder if it is the last."""
        self.waiting = False
        self._write(ended=True)
        others = [record for record in self.records() if record.rank != self.rank]
        if all(record.ended or (record.host == self.host and is_gone(record)) for record in others):
            shutil.rmtree(self.path, ignore_errors=True)

    def records(self, host: str | None = None) -> list[Record]:
        """Returns the records by rank; those of one host only, if it is given."""
        try:
            names = [name.partition("@") for name in os.listdir(self.path) if "@" in name]
        except OSError:
            return []
        records = [_read(self._path_of("".join(name))) for name in names if host in (None, name[2])]
        return sorted(record for record in records if record is not None and record.progress_time > self._oldest)

    def claim_error_report(self, code: int = FAILED) -> bool:
        """Returns whether the caller reports why the job ends: True once, for the first of all ranks that asks.

        Args:
            code: the exit code of the caller.
        """
        if self._claimed:
            return False
        self._claimed = True
        try:
            with open(self._path_of(REPORTED), "x") as file:
                file.write(str(code))
        except FileExistsError:
            return False
        except OSError:
            pass  # two reports are better than none
        return True

    def error_reported(self) -> bool:
        """Returns whether a rank reports why the job ends, or has done so."""
        return os.path.exists(self._path_of(REPORTED))

    def reported_code(self) -> int | None:
        """Returns the exit code of the rank that reports why the job ends; None if there is none."""
        end = time.monotonic() + WRITTEN_WITHIN
        while True:
            try:
                with open(self._path_of(REPORTED)) as file:
                    return int(file.read())
            except ValueError:  # another rank has just created the file
                if time.monotonic() > end:
                    return FAILED
                time.sleep(0.01)
            except OSError:
                return None

    def _path_of(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _write(self, ended: bool) -> None:
        if self._file is None:
            return
        status = (self.num_update, self.doing[:99], self.waiting, ended, time.time())
        record = Record(self.rank, self.host, self.pid, self._started, *status)
        with suppress(OSError):
            os.pwrite(self._file, json.dumps(record).encode().ljust(LENGTH), 0)


def _read(path: str) -> Record | None:
    try:
        with open(path, "rb") as file:
            return Record(*json.loads(file.read(LENGTH)))
    except (OSError, ValueError, TypeError):  # removed, or not written yet
        return None


def remove_dead(root: str, host: str, keep: str) -> None:
    """Removes the folders of jobs that were killed, so that no rank was left to do it.

    Args:
        root: the folder that holds them.
        host: name of this host.
        keep: path of a folder that stays.

    Raises:
        OSError: ``root`` cannot be listed.
    """
    for name in os.listdir(root):
        path = os.path.join(root, name)
        if name.startswith(PREFIX) and path != keep and os.path.isdir(path):
            files = [os.path.join(path, entry) for entry in os.listdir(path) if "@" in entry]
            if files and all(_is_dead(file, host) for file in files):
                shutil.rmtree(path, ignore_errors=True)


def _is_dead(path: str, host: str) -> bool:
    record = _read(path)
    if record is None:  # created but not written, by a rank that has ended since or is just starting
        return os.path.getmtime(path) < time.time() - STALE
    # The processes of other hosts cannot be seen from here, but every living rank writes within a day.
    return is_gone(record) if record.host == host else record.progress_time < time.time() - 86400


def is_gone(record: Record) -> bool:
    """Returns whether the process of a record of this host has ended."""
    return has_ended(record.pid, record.started)


def is_stopped(record: Record) -> bool:
    """Returns whether the process of a record of this host is stopped by SIGSTOP or a debugger."""
    return not is_gone(record) and process_state(record.pid)[0] in ("T", "t")


class LocalPeers:
    """The other ranks on this host, as far as they have written their status.

    Args:
        rank_status: the store of this rank.
        local_size: the number of ranks on this host.
    """

    def __init__(self, rank_status: RankStatusStore, local_size: int):
        self._rank_status, self._local_size = rank_status, local_size
        self._peers: dict[int, Record] = {}
        self._ended: set[int] = set()  # ranks that ended as they should

    def find_lost(self) -> Record | None:
        """Returns a rank whose process is gone although it did not leave, or left after an error; else None."""
        if len(self._peers) < self._local_size - 1:
            self._peers = self._read()
        for rank, record in self._peers.items():
            if rank not in self._ended and is_gone(record):
                last = self._read().get(rank, record)
                if not last.ended or self._rank_status.error_reported():
                    return last
                self._ended.add(rank)
        return None

    def kill(self, ranks: Sequence[int]) -> None:
        """Sends SIGKILL to those of the ranks that are on this host."""
        for rank in ranks:
            if rank in self._peers:
                with suppress(ProcessLookupError):  # another rank was faster
                    os.kill(self._peers[rank].pid, signal.SIGKILL)

    def _read(self) -> dict[int, Record]:
        records = self._rank_status.records(self._rank_status.host)
        return {record.rank: record for record in records if record.rank != self._rank_status.rank}
