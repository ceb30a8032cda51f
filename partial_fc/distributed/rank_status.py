"""What the ranks of a job tell each other: a folder with a small record of each rank, and who reports why the job ends.

Horovod cannot be asked which rank is missing: it waits, or has shut down. So each rank overwrites one record of its
own in a folder that all can read.

A job that is started again may find the records of a killed one under the same name. Which records belong to this
attempt is decided without the time of day, which may jump: a record counts once it has changed since this process
started, by the clock since boot on one host and by comparison between hosts. Once the ranks have met, all records of
the attempt hold a name that rank 0 has drawn.

Nobody else may write here, because a record says which process is to be killed: the folder has mode 0700, and files
of other owners are ignored.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, get_type_hints

from partial_fc.utils.staging import empty_folder

from .errors import FAILED
from .processes import boot_id, has_ended, pid_namespace, process_state, since_boot

PREFIX = ".job-"
REPORTED = "error_reported"  # created by the rank that reports why the job ends; holds its exit code
WRITTEN_WITHIN = 20  # hundredths of a second from the creation of this file until it has content
UNWRITTEN = 7 * 86400.0  # seconds without a change after which the folder is that of a killed job
LENGTH = 1024  # bytes of a record, all that is read of one
# Neither follows a link nor waits for a pipe.
FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Record(NamedTuple):
    """The status of a rank. Ranks of other versions may read it: fields are only added, at the end."""

    rank: int
    host: str
    boot: str  # id of the boot of its host
    pid: int
    started: int  # start time of its process, which tells it from a later process with the same id
    attempt: str  # the name that rank 0 has drawn; "" until the ranks have met
    met: float  # when they met, seconds since the boot of its host; 0 until then
    num_update: int  # the last update; -1 before training
    doing: str  # what the main thread does
    waiting: bool  # whether it waits for other ranks there
    ended: bool  # whether the rank ended as it should, or after it reported an error
    # When it last made progress: seconds since the boot of its host; in RankStatusStore.records(), of the reader's.
    progress_time: float
    namespace: str = ""  # of its process id, see pid_namespace


_TYPES = list(get_type_hints(Record).values())


def job_key(environment: Mapping[str, str], pid: int) -> str:
    """Returns a name that only the processes of this job share, on all its hosts; a restart by torchrun is another job.

    The hosts of an elastic job may count its restarts differently. Then each sees its own ranks only. With a fixed
    address and port, jobs that are started one after the other have the same key. A process that no launcher started is
    a job by itself, by its ``pid``.
    """
    if "TORCHELASTIC_RUN_ID" in environment:  # first, as in env.rank_info; it is "none" with a fixed address and port
        names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE")
        parts = [environment.get(name, "") for name in names]
        if environment.get("WORLD_SIZE") == environment.get("LOCAL_WORLD_SIZE"):
            parts.append(socket.gethostname())  # of its loopback interface, which other hosts and containers have too
        key = "-".join(parts)
    else:  # mpirun draws 128 random bits for each job
        key = environment.get("OMPI_MCA_orte_precondition_transports") or environment.get("PMIX_NAMESPACE") or ""
        if not key and "HOROVOD_GLOO_RENDEZVOUS_PORT" in environment:
            key = f"{environment.get('HOROVOD_GLOO_RENDEZVOUS_ADDR')}-{environment['HOROVOD_GLOO_RENDEZVOUS_PORT']}"
    return "".join(c if c.isalnum() or c in ".-" else "-" for c in key) or f"alone-{pid}"


class RankStatusStore:
    """The records of all ranks of a job. No method fails: a rank that cannot write has no record.

    Args:
        root: where the folder is made, on a disk that all hosts share; otherwise each host sees its own ranks only.
        key: of the job, see job_key.
        rank: of this process.
        key_repeats: whether other jobs may have had the same key.

    Attributes:
        num_update, doing, waiting: the status of this rank, see Record.
    """

    def __init__(self, root: str, key: str, rank: int, key_repeats: bool = True):
        self.path = os.path.join(root, PREFIX + key)
        self.rank, self.host = rank, socket.gethostname()
        self.num_update, self.doing, self.waiting = -1, "startup", False
        self._root, self._key_repeats = root, key_repeats
        self._boot, self._namespace, self._pid = boot_id(), pid_namespace(), os.getpid()
        self._started = process_state(self._pid)[1]
        self._started_at = self._started / os.sysconf("SC_CLK_TCK")  # seconds since boot
        self._attempt, self._met = "", 0.0
        self._claimed = self._ended = False
        self._folder = self._file = -1  # descriptors; every use of -1 is an OSError
        self._lock = threading.Lock()
        self._earlier: dict[str, Record] = {}  # file name -> record from before this process started
        self._peers: dict[int, Record | None] = {}  # other ranks on this host; None: it ended as it should

    @classmethod
    def of_job(cls, root: str, environment: Mapping[str, str], rank: int) -> RankStatusStore:
        """Makes the store of the job that a launcher has started with this environment."""
        # mpirun draws a key, and horovodrun a port; a fixed address and port of torchrun are those of every attempt.
        return cls(root, job_key(environment, os.getpid()), rank, "TORCHELASTIC_RUN_ID" in environment)

    def open(self) -> RankStatusStore:
        """Creates the folder and the file of this rank, removes what earlier jobs left, and returns this store."""
        with suppress(OSError):
            os.makedirs(self._root, exist_ok=True)
            with suppress(FileExistsError):
                os.mkdir(self.path, 0o700)
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | FLAGS)
            name = f"{self.rank}@{self.host}"
            file = os.open(name, os.O_RDWR | os.O_CREAT | FLAGS, 0o600, dir_fd=folder)
            # The owner of the file, not this process: a file server may give its files to another user.
            if not _is_own(folder, os.fstat(file).st_uid) or not stat.S_ISREG(os.fstat(file).st_mode):
                os.close(file)
                return self
            os.fchmod(folder, 0o700)
            os.ftruncate(file, 0)
            os.utime(file)  # the present time of the file server
            self._folder, self._file = folder, file
            if self._key_repeats:
                for name, record in self._read_all().items():
                    # All ranks of a host start at once, so what one wrote before this process started is earlier.
                    own = (record.host, record.boot, record.attempt) == (self.host, self._boot, "")
                    if not own or record.progress_time < self._started_at:
                        self._earlier[name] = record
                self._remove_earlier_report()
            self._remove_old_jobs(os.fstat(file))
        return self

    def join(self, attempt: str) -> None:
        """All ranks have met: from now on only records with this name, which rank 0 has drawn, are of this attempt."""
        self._attempt, self._met = attempt, since_boot()
        self.update()

    def update(self, doing: str | None = None, waiting: bool | None = None, num_update: int | None = None) -> None:
        """Records progress, and what has changed: what the main thread does, whether it waits there, the update."""
        self.doing = self.doing if doing is None else doing
        self.waiting = self.waiting if waiting is None else waiting
        self.num_update = self.num_update if num_update is None else num_update
        self._write()

    def refresh(self) -> None:
        """Shows the ranks of other hosts, before all have met, that the process of this record is running."""
        if not self._lock.locked():  # else the main thread writes, perhaps to a disk that hangs
            self._write()

    def leave(self) -> None:
        """Records that this rank has ended, and removes the folder if it is the last."""
        self.waiting, self._ended = False, True
        self._write()
        others = [record for record in self.records() if record.rank != self.rank]
        if self._folder >= 0 and all(record.ended or self.is_gone(record) for record in others):
            _remove(self.path, self._folder)

    def records(self) -> list[Record]:
        """Returns the records of this attempt, by rank."""
        found, joined = [], self._key_repeats and self._attempt
        for name, record in self._read_all().items():
            if record.attempt != self._attempt if joined else record == self._earlier.get(name):
                continue
            if not self.is_here(record):
                # All ranks met at the same moment, which each has read on the clock of its host.
                record = record._replace(progress_time=record.progress_time - record.met + self._met)
            found.append(record)
        return sorted(found)

    # The other ranks on this host, watched by their processes ----------------------------------------

    def is_here(self, record: Record) -> bool:
        """Returns whether a record is of this host, since it booted, and of a process that can be seen from here."""
        return (record.host, record.boot, record.namespace) == (self.host, self._boot, self._namespace)

    def is_gone(self, record: Record) -> bool:
        """Returns whether a record is of this host, and its process has ended."""
        return self.is_here(record) and has_ended(record.pid, record.started)

    def is_stopped(self, record: Record) -> bool:
        """Returns whether a record is of this host, and its process is stopped by SIGSTOP or a debugger."""
        return self.is_here(record) and not self.is_gone(record) and process_state(record.pid)[0] in ("T", "t")

    def find_lost(self, local_size: int) -> Record | None:
        """Returns a rank of this host whose process is gone although it did not leave, or left after an error."""
        if len(self._peers) < local_size - 1:  # afterwards no file is read
            self._peers.update(self._local_records())
        for rank, record in self._peers.items():
            if record is not None and self.is_gone(record):
                last = self._local_records().get(rank, record)
                if not last.ended or self.error_reported():
                    return last
                self._peers[rank] = None
        return None

    def kill(self, ranks: Sequence[int]) -> None:
        """Sends SIGKILL to those of the ranks that are on this host."""
        for rank in ranks:
            record = self._peers.get(rank)
            if record is not None and not self.is_gone(record):
                with suppress(ProcessLookupError):  # another rank was faster
                    os.kill(record.pid, signal.SIGKILL)

    def _local_records(self) -> dict[int, Record]:
        return {each.rank: each for each in self.records() if each.rank != self.rank and self.is_here(each)}

    # The report of why the job ends -------------------------------------------------------------------

    def claim_error_report(self, code: int = FAILED) -> bool:
        """Returns whether the caller reports why the job ends: True once, for the first of all ranks that asks."""
        if self._claimed:
            return False
        self._claimed = True
        try:
            file = os.open(REPORTED, os.O_WRONLY | os.O_CREAT | os.O_EXCL | FLAGS, 0o600, dir_fd=self._folder)
        except FileExistsError:
            return False
        except OSError:
            return True  # two reports are better than none
        with suppress(OSError), open(file, "w") as stream:
            json.dump([code, self.host, self._boot, since_boot()], stream)
        return True

    def error_reported(self) -> bool:
        """Returns whether a rank reports why the job ends, or has done so."""
        with suppress(OSError):
            return stat.S_ISREG(os.stat(REPORTED, dir_fd=self._folder, follow_symlinks=False).st_mode)
        return False

    def reported_code(self) -> int | None:
        """Returns the exit code of the rank that reports why the job ends; None if there is none."""
        for _ in range(WRITTEN_WITHIN):
            try:
                return int(self._read_report()[0])
            except OSError:
                return None
            except (ValueError, TypeError, LookupError):  # another rank has just created the file
                time.sleep(0.01)
        return FAILED

    def _read_report(self) -> list:
        file = os.open(REPORTED, os.O_RDONLY | FLAGS, dir_fd=self._folder)
        with open(file) as stream:
            return json.load(stream)

    def _remove_earlier_report(self) -> None:
        """Removes the report of an earlier attempt: from before this process started, or from another host or boot.

        A rank of this attempt can only report after it has started, and all ranks of a host start at once.
        """
        with suppress(OSError):
            try:
                _, host, boot, reported_at = self._read_report()
                earlier = (host, boot) != (self.host, self._boot) or reported_at < self._started_at
            except (ValueError, TypeError):  # damaged, unless it is empty: another rank has just created it
                earlier = os.stat(REPORTED, dir_fd=self._folder, follow_symlinks=False).st_size > 0
            if earlier:
                os.remove(REPORTED, dir_fd=self._folder)

    # Files --------------------------------------------------------------------------------------------

    def _write(self) -> None:
        with self._lock, suppress(OSError):  # both threads write
            process = (self.rank, self.host, self._boot, self._pid, self._started, self._attempt, self._met)
            status = (self.num_update, self.doing[:99], self.waiting, self._ended, since_boot(), self._namespace)
            os.pwrite(self._file, json.dumps(Record(*process, *status)).encode().ljust(LENGTH), 0)

    def _read_all(self) -> dict[str, Record]:
        """File name -> record, of all attempts."""
        try:
            owner = os.fstat(self._folder).st_uid
            found = {name: _read_record(name, self._folder, owner) for name in os.listdir(self._folder) if "@" in name}
        except OSError:
            return {}
        return {name: record for name, record in found.items() if record is not None}

    def _remove_old_jobs(self, own: os.stat_result) -> None:
        """Removes the folders of jobs that were killed, so that no rank was left to do it.

        ``own`` is of a file that has just been written there: its owner, and the time of the file server.
        """
        for path in (os.path.join(self._root, name) for name in os.listdir(self._root) if name.startswith(PREFIX)):
            with suppress(OSError):
                folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | FLAGS)
                try:
                    names = os.listdir(folder)
                    if _is_own(folder, own.st_uid) and all("@" in name or name == REPORTED for name in names):
                        files = [os.stat(name, dir_fd=folder, follow_symlinks=False) for name in names]
                        if own.st_mtime - max(file.st_mtime for file in (os.fstat(folder), *files)) > UNWRITTEN:
                            _remove(path, folder)
                finally:
                    os.close(folder)


def _remove(path: str, folder: int) -> None:
    """Removes an open folder: another one that a member of the group has put in its place stays."""
    empty_folder(f"/proc/self/fd/{folder}")
    with suppress(OSError):
        os.rmdir(path)


def _is_own(file: int, owner: int) -> bool:
    return os.fstat(file).st_uid == owner


def _read_record(name: str, folder: int, owner: int) -> Record | None:
    """Returns the record in a file of a folder; None if it is not written yet, not valid, or not of this owner."""
    try:
        file = os.open(name, os.O_RDONLY | FLAGS, dir_fd=folder)
        try:
            record = Record(*json.loads(os.pread(file, LENGTH, 0))) if _is_own(file, owner) else None
        finally:
            os.close(file)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return record if record and _is_valid(record) and name == f"{record.rank}@{record.host}" else None


def _is_valid(record: Record) -> bool:
    """Whether all fields have their types, and the numbers those that a process can have: kill(-1) ends everything."""
    numbers = [field for field in record if isinstance(field, (int, float))]
    if list(map(type, record)) != _TYPES or not all(abs(number) < 2**53 for number in numbers):
        return False
    return min(record.rank, record.started) >= 0 and record.pid > 1
