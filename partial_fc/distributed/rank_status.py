"""The rank status store: a folder with one small record per rank, and the claim of the rank that reports an error.

If a rank is missing, Horovod waits or shuts down, and cannot say which. So each rank overwrites its own record in a
folder that all ranks can read.

A restarted job may find the records of a killed attempt under the same key. The time of day may jump, so it does not
decide which records belong to this attempt. Instead, a record counts once it has changed since this process started.
On the same host, the clock since boot shows this; for other hosts, a comparison with the first reading. Once the
ranks are connected, all records of the attempt carry a random name that rank 0 has chosen.

A record names the process to kill, so no other user may write here: the folder has mode 0700, and files of other
owners are ignored.
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
REPORTED = "error_reported"  # created by the rank that reports why the job ends; contains its exit code
REPORT_READS = 20  # attempts of reported_code to read REPORTED, 0.01 s apart
UNWRITTEN = 7 * 86400.0  # seconds without a change after which a folder counts as left over from a killed job
LENGTH = 1024  # size of a record in bytes; readers read no more
# Files may be hostile: do not follow links or block on pipes.
FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Record(NamedTuple):
    """The status of a rank. Ranks of other versions may read it, so fields are only added, at the end."""

    rank: int
    host: str
    boot: str  # boot id of the host
    pid: int
    started: int  # start time of the process, as a later process may have the same id
    attempt: str  # random name of the attempt; "" until the ranks are connected
    connected: float  # when the ranks connected, in seconds since boot; 0 until then
    num_update: int  # last update; -1 before training
    doing: str  # current operation of the main thread
    waiting: bool  # whether the main thread waits for other ranks
    ended: bool  # whether the rank ended normally, or after a report
    # Last progress in seconds since boot: by the writer's clock in the file, by the reader's in records().
    progress_time: float
    namespace: str = ""  # namespace of the process id, see pid_namespace
    made_root: bool = False  # whether this rank has created the parent of the store's folder


_TYPES = list(get_type_hints(Record).values())


def job_key(environment: Mapping[str, str], pid: int) -> str:
    """Returns a name that the processes of one job share on all hosts. A restart by torchrun is another job.

    Jobs that run one after the other with the same address and port have the same key. If the hosts of an elastic job
    count its restarts differently, each host sees its own ranks only. Without a launcher, the key contains ``pid``.
    """
    torchrun = "TORCHELASTIC_RUN_ID" in environment  # first, as in env.rank_info
    # mpirun draws 128 random bits per job.
    key = environment.get("OMPI_MCA_orte_precondition_transports") or environment.get("PMIX_NAMESPACE") or ""
    if not key and "HOROVOD_GLOO_RENDEZVOUS_PORT" in environment:
        key = f"{environment.get('HOROVOD_GLOO_RENDEZVOUS_ADDR')}-{environment['HOROVOD_GLOO_RENDEZVOUS_PORT']}"
    # Of PyTorch; a job system may set the variables for a process without a launcher, too.
    other_launcher = "LOCAL_WORLD_SIZE" in environment and environment.get("WORLD_SIZE") != "1"
    if torchrun or not key and other_launcher:
        names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE")
        parts = [environment.get(name, "") for name in names]
        if environment.get("WORLD_SIZE") == environment.get("LOCAL_WORLD_SIZE"):
            parts.append(socket.gethostname())  # a loopback address and port may be the same on another host
        key = "-".join(parts)
    return "".join(c if c.isalnum() or c in ".-" else "-" for c in key) or f"alone-{pid}"


class RankStatusStore:
    """The records of all ranks of a job. Methods raise no OSError: a rank that cannot write has no record.

    Args:
        root: parent of the store's folder. On a disk that is not shared, each host sees its own ranks only.
        key: key of the job, see job_key.
        rank: rank of this process.
        key_repeats: whether earlier jobs may have used the same key.

    Attributes:
        num_update, doing, waiting: status of this rank, see Record.
    """

    def __init__(self, root: str, key: str, rank: int, key_repeats: bool = True):
        self.path = os.path.join(root, PREFIX + key)
        self.rank, self.host = rank, socket.gethostname()
        self.num_update, self.doing, self.waiting = -1, "startup", False
        self._root, self._key_repeats = root, key_repeats
        self._boot, self._namespace, self._pid = boot_id(), pid_namespace(), os.getpid()
        self._started = process_state(self._pid)[1]
        self._started_at = self._started / os.sysconf("SC_CLK_TCK")  # seconds since boot
        self._attempt, self._connected = "", 0.0
        self._claimed = self._ended = self._made_root = False
        self._folder = self._file = -1  # descriptors; using -1 raises OSError
        self._lock = threading.Lock()
        self._earlier: dict[str, Record] = {}  # file name -> record from before this process started
        self._peers: dict[int, Record | None] = {}  # other ranks on this host; None if the rank has ended normally

    @classmethod
    def of_job(cls, root: str, environment: Mapping[str, str], rank: int) -> RankStatusStore:
        """Creates the store for the job that a launcher has started with this environment."""
        # mpirun draws a random key, horovodrun a random port. With PyTorch's launchers, a restart may use the same
        # address and port as the attempt before it.
        return cls(root, job_key(environment, os.getpid()), rank, "LOCAL_WORLD_SIZE" in environment)

    def open(self) -> RankStatusStore:
        """Creates the folder and the record of this rank, removes the remains of earlier jobs, and returns ``self``."""
        with suppress(OSError):
            with suppress(FileExistsError):
                os.makedirs(self._root)
                self._made_root = True
            with suppress(FileExistsError):
                os.mkdir(self.path, 0o700)
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | FLAGS)
            name = f"{self.rank}@{self.host}"
            file = os.open(name, os.O_RDWR | os.O_CREAT | FLAGS, 0o600, dir_fd=folder)
            # Compare with the file's owner, not with this user: a file server may map users.
            if not _is_owned_by(folder, os.fstat(file).st_uid) or not stat.S_ISREG(os.fstat(file).st_mode):
                os.close(file)
                return self
            os.fchmod(folder, 0o700)
            os.ftruncate(file, 0)
            os.utime(file)  # the current time of the file server, see _remove_old_jobs
            self._folder, self._file = folder, file
            if self._key_repeats:
                for name, record in self._read_all().items():
                    # A host starts all its ranks at once. So a record from before this process started is of an
                    # earlier attempt.
                    comparable = (record.host, record.boot, record.attempt) == (self.host, self._boot, "")
                    if not comparable or record.progress_time < self._started_at:
                        self._earlier[name] = record
                self._remove_earlier_report()
            self._remove_old_jobs(os.fstat(file))
        return self

    def join(self, attempt: str) -> None:
        """Enters the attempt with this random name: the ranks are connected, and other records no longer count."""
        self._attempt, self._connected = attempt, since_boot()
        self.update()

    def update(self, doing: str | None = None, waiting: bool | None = None, num_update: int | None = None) -> None:
        """Records progress and the given fields of Record; None leaves a field as it is."""
        self.doing = self.doing if doing is None else doing
        self.waiting = self.waiting if waiting is None else waiting
        self.num_update = self.num_update if num_update is None else num_update
        self._write()

    def refresh(self) -> None:
        """Rewrites the record: before the ranks connect, other hosts count only records that they see change."""
        if not self._lock.locked():  # the main thread may be writing, to a disk that hangs
            self._write()

    def leave(self) -> None:
        """Records that this rank has ended. The last rank removes the folder, and its parent if it is new and empty."""
        self.waiting, self._ended = False, True
        self._write()
        others = [record for record in self.records() if record.rank != self.rank]
        if self._folder >= 0 and all(record.ended or self.is_gone(record) for record in others):
            _remove(self.path, self._folder)
            if self._made_root or any(record.made_root for record in others):
                with suppress(OSError):  # a training has begun
                    os.rmdir(self._root)

    def records(self) -> list[Record]:
        """Returns the records of this attempt, sorted by rank."""
        records, joined = [], self._key_repeats and self._attempt
        for name, record in self._read_all().items():
            # Once joined, the name of the attempt decides; until then, a record counts once it has changed.
            is_earlier = record.attempt != self._attempt if joined else record == self._earlier.get(name)
            if is_earlier:
                continue
            if not self.is_here(record):
                # Clocks since boot differ between hosts. The moment when the ranks connected is known on both.
                record = record._replace(progress_time=record.progress_time - record.connected + self._connected)
            records.append(record)
        return sorted(records)

    # The other ranks on this host, watched by their processes ----------------------------------------

    def is_here(self, record: Record) -> bool:
        """Returns whether this process can see the record's process: same boot of the same host, same namespace."""
        return (record.host, record.boot, record.namespace) == (self.host, self._boot, self._namespace)

    def is_gone(self, record: Record) -> bool:
        """Returns whether a record is of this host and its process has ended."""
        return self.is_here(record) and has_ended(record.pid, record.started)

    def is_stopped(self, record: Record) -> bool:
        """Returns whether a record is of this host and SIGSTOP or a debugger has stopped its process."""
        return self.is_here(record) and not self.is_gone(record) and process_state(record.pid)[0] in ("T", "t")

    def find_lost(self, local_size: int) -> Record | None:
        """Returns the record of a rank on this host that was killed, or that ended after an error, else None."""
        if len(self._peers) < local_size - 1:  # once all are known, a call reads no file
            self._peers.update(self._local_records())
        for rank, record in self._peers.items():
            if record is not None and self.is_gone(record):
                last = self._local_records().get(rank, record)
                if not last.ended or self.error_reported():
                    return last
                self._peers[rank] = None
        return None

    def kill(self, ranks: Sequence[int]) -> None:
        """Sends SIGKILL to those of ``ranks`` that run on this host."""
        for rank in ranks:
            record = self._peers.get(rank)
            if record is not None and not self.is_gone(record):
                with suppress(ProcessLookupError):  # another rank has just killed it
                    os.kill(record.pid, signal.SIGKILL)

    def _local_records(self) -> dict[int, Record]:
        return {each.rank: each for each in self.records() if each.rank != self.rank and self.is_here(each)}

    # The report of why the job ends -------------------------------------------------------------------

    def claim_error_report(self, code: int = FAILED) -> bool:
        """Returns whether the caller is to report why the job ends: True once per job, for the first caller."""
        if self._claimed:
            return False
        self._claimed = True
        try:
            file = os.open(REPORTED, os.O_WRONLY | os.O_CREAT | os.O_EXCL | FLAGS, 0o600, dir_fd=self._folder)
        except FileExistsError:
            return False
        except OSError:
            return True  # the folder is unusable, and two reports are better than none
        with suppress(OSError), open(file, "w") as stream:
            json.dump([code, self.host, self._boot, since_boot()], stream)
        return True

    def error_reported(self) -> bool:
        """Returns whether a rank has claimed the report."""
        with suppress(OSError):
            return stat.S_ISREG(os.stat(REPORTED, dir_fd=self._folder, follow_symlinks=False).st_mode)
        return False

    def reported_code(self) -> int | None:
        """Returns the exit code of the rank that has claimed the report; None if none has."""
        for _ in range(REPORT_READS):
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

        A rank of this attempt cannot have reported earlier, because a host starts all its ranks at once.
        """
        with suppress(OSError):
            try:
                _, host, boot, reported_at = self._read_report()
                earlier = (host, boot) != (self.host, self._boot) or reported_at < self._started_at
            except (ValueError, TypeError):  # damaged, or empty because another rank has just created it
                earlier = os.stat(REPORTED, dir_fd=self._folder, follow_symlinks=False).st_size > 0
            if earlier:
                os.remove(REPORTED, dir_fd=self._folder)

    # Files --------------------------------------------------------------------------------------------

    def _write(self) -> None:
        with self._lock, suppress(OSError):  # both threads write
            process = (self.rank, self.host, self._boot, self._pid, self._started, self._attempt, self._connected)
            status = (self.num_update, self.doing[:99], self.waiting, self._ended, since_boot(), self._namespace)
            os.pwrite(self._file, json.dumps(Record(*process, *status, self._made_root)).encode().ljust(LENGTH), 0)

    def _read_all(self) -> dict[str, Record]:
        """Returns the valid records of all attempts, by file name."""
        try:
            owner = os.fstat(self._folder).st_uid
            records = {name: _read_record(name, self._folder, owner) for name in os.listdir(self._folder)}
        except OSError:
            return {}
        return {name: record for name, record in records.items() if record is not None}

    def _remove_old_jobs(self, new_file: os.stat_result) -> None:
        """Removes the folders of killed jobs, which had no rank left to do it.

        Args:
            new_file: status of a file written just now, which shows its owner and the file server's current time.
        """
        for path in (os.path.join(self._root, name) for name in os.listdir(self._root) if name.startswith(PREFIX)):
            with suppress(OSError):
                folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | FLAGS)
                try:
                    names = os.listdir(folder)
                    if _is_owned_by(folder, new_file.st_uid) and all("@" in name or name == REPORTED for name in names):
                        files = [os.stat(name, dir_fd=folder, follow_symlinks=False) for name in names]
                        if new_file.st_mtime - max(file.st_mtime for file in (os.fstat(folder), *files)) > UNWRITTEN:
                            _remove(path, folder)
                finally:
                    os.close(folder)


def _remove(path: str, folder: int) -> None:
    """Removes an open folder. If another user has put another folder at its path, that one keeps its files."""
    empty_folder(f"/proc/self/fd/{folder}")
    with suppress(OSError):
        os.rmdir(path)


def _is_owned_by(file: int, owner: int) -> bool:
    return os.fstat(file).st_uid == owner


def _read_record(name: str, folder: int, owner: int) -> Record | None:
    """Returns the record in a file; None if it is not written yet, not valid, or belongs to another owner."""
    try:
        file = os.open(name, os.O_RDONLY | FLAGS, dir_fd=folder)
        try:
            record = Record(*json.loads(os.pread(file, LENGTH, 0))) if _is_owned_by(file, owner) else None
        finally:
            os.close(file)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return record if record and _is_valid(record) and name == f"{record.rank}@{record.host}" else None


def _is_valid(record: Record) -> bool:
    """Returns whether all fields have valid types and values. Above all the pid: kill(-1) would kill all processes."""
    numbers = [field for field in record if isinstance(field, (int, float))]
    if list(map(type, record)) != _TYPES or not all(abs(number) < 2**53 for number in numbers):
        return False
    return min(record.rank, record.started) >= 0 and record.pid > 1
