"""A folder in which each rank records its status, so that the others can name it when it is lost.

Each rank overwrites one small record of its own. Horovod cannot be asked which rank is missing: it waits, or has
shut down.

A job that is started again may find the records of one that was killed, under the same name. What belongs to this
attempt is decided without the time of day, which jumps: on one host by processes and by the clock since it booted,
between hosts by order alone (a record that changes is of a running process). Once the ranks have met, all records of
the attempt hold a name that rank 0 has drawn.

Nobody else may write here: a record says which process is to be killed. The folder has mode 0700, and what another user
owns is ignored.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from partial_fc.utils.staging import empty_folder

from .errors import FAILED
from .processes import process_state
from .rank_record import FLAGS, LENGTH, Record, boot_id, is_gone, is_own, pid_namespace, read_record, since_boot

PREFIX = ".job-"
REPORTED = "error_reported"  # the file that the rank creates which reports why the job ends; holds its exit code
WRITTEN_WITHIN = 0.2  # seconds from the creation of this file until it has content
UNWRITTEN, SILENT = 900.0, 86400.0  # seconds after which an empty file, and a record of another host, are of a dead job


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
        return _as_name("-".join(parts))
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
        key_repeats: whether other jobs may have had the same key.

    Attributes:
        num_update, doing, waiting: the status of this rank, see Record.
    """

    def __init__(self, root: str, key: str, rank: int, key_repeats: bool = True):
        self.path = os.path.join(root, PREFIX + key)
        self.rank, self.host, self.pid = rank, socket.gethostname(), os.getpid()
        self.num_update, self.doing, self.waiting = -1, "startup", False
        self._root, self._key_repeats, self._boot = root, key_repeats, boot_id()
        self._namespace = pid_namespace()
        self._attempt, self._met = "", 0.0
        self._started = process_state(self.pid)[1]
        self._started_at = self._started / os.sysconf("SC_CLK_TCK")  # seconds since boot
        self._claimed = self._ended = False
        self._folder: int | None = None
        self._file: int | None = None
        self._lock = threading.Lock()
        self._progress_time = 0.0
        self._earlier: dict[str, Record] = {}  # file name -> record of another host, when this process started

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
            # Not the user id of this process: a file server may give its files to another user.
            if not is_own(folder, os.fstat(file).st_uid) or not stat.S_ISREG(os.fstat(file).st_mode):
                os.close(file)
                return self
            os.fchmod(folder, 0o700)
            os.ftruncate(file, 0)
            os.utime(file)  # the present time of the file server
            self._folder, self._file = folder, file
            if self._key_repeats:
                self._earlier = {name: record for name, record in self._read_all().items() if not self.is_here(record)}
                self._remove_earlier_report()
            remove_dead(self._root, self, os.fstat(file))
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
        others = [record for record in self._read_all().values() if record.rank != self.rank]
        if self._folder is not None and all(record.ended or self.is_gone_here(record) for record in others):
            _remove(self.path, self._folder)

    def records(self, host: str | None = None) -> list[Record]:
        """Returns the records of this attempt by rank; those of one host only, if it is given."""
        found = self._read_all()
        mine = [record for name, record in found.items() if self._is_of_this_attempt(name, record)]
        return sorted(self._on_own_clock(record) for record in mine if host in (None, record.host))

    def claim_error_report(self, code: int = FAILED) -> bool:
        """Returns whether the caller reports why the job ends: True once, for the first of all ranks that asks."""
        if self._claimed:
            return False
        self._claimed = True
        try:
            file = os.open(REPORTED, os.O_WRONLY | os.O_CREAT | os.O_EXCL | FLAGS, 0o600, dir_fd=self._open_folder())
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
            return stat.S_ISREG(os.stat(REPORTED, dir_fd=self._open_folder(), follow_symlinks=False).st_mode)
        return False

    def reported_code(self) -> int | None:
        """Returns the exit code of the rank that reports why the job ends; None if there is none."""
        end = time.monotonic() + WRITTEN_WITHIN
        while True:
            try:
                return int(self._read_report()[0])
            except (ValueError, TypeError, LookupError):  # another rank has just created the file
                if time.monotonic() > end:
                    return FAILED
                time.sleep(0.01)
            except OSError:
                return None

    def _open_folder(self) -> int:
        if self._folder is None:
            raise FileNotFoundError(self.path)
        return self._folder

    def _read_report(self) -> list:
        file = os.open(REPORTED, os.O_RDONLY | FLAGS, dir_fd=self._open_folder())
        with open(file) as stream:
            return json.load(stream)

    def _remove_earlier_report(self) -> None:
        """Removes the report of an earlier attempt: from before this process started, or from another host or boot.

        A rank of this attempt can only report after it has started, which all ranks of a host do at once.
        """
        try:
            _, host, boot, reported_at = self._read_report()
            if (host, boot) == (self.host, self._boot) and reported_at >= self._started_at:
                return
        except (ValueError, TypeError):
            # Without content: just created, or by a process that was killed meanwhile.
            if os.stat(REPORTED, dir_fd=self._folder, follow_symlinks=False).st_size == 0:
                return
        except OSError:
            return
        with suppress(FileNotFoundError):
            os.remove(REPORTED, dir_fd=self._folder)

    def _write(self) -> None:
        if self._file is None:
            return
        with self._lock, suppress(OSError):  # the watchdog writes as well
            self._progress_time = since_boot()
            process = (self.rank, self.host, self._boot, self.pid, self._started, self._attempt, self._met)
            status = (self.num_update, self.doing[:99], self.waiting, self._ended, self._progress_time, self._namespace)
            os.pwrite(self._file, json.dumps(Record(*process, *status)).encode().ljust(LENGTH), 0)

    def _read_all(self) -> dict[str, Record]:
        """File name -> record, of all attempts."""
        try:
            owner = os.fstat(self._open_folder()).st_uid
            names = [name for name in os.listdir(self._folder) if "@" in name]
        except OSError:
            return {}
        found = {name: read_record(name, self._folder, owner) for name in names}
        return {name: record for name, record in found.items() if record is not None}

    def is_here(self, record: Record) -> bool:
        """Returns whether a record is of this host, since it booted, and of a process that can be seen from here."""
        return (record.host, record.boot, record.namespace) == (self.host, self._boot, self._namespace)

    def is_gone_here(self, record: Record) -> bool:
        """Returns whether a record is of this host, and its process is known to have ended."""
        if self.is_here(record):
            return is_gone(record)
        return record.host == self.host and record.boot != self._boot

    def _is_of_this_attempt(self, name: str, record: Record) -> bool:
        if not self._key_repeats:
            return True
        if self._attempt:
            return record.attempt == self._attempt
        if self.is_here(record):
            return not is_gone(record) or (not record.attempt and record.progress_time >= self._started_at)
        return not self.is_gone_here(record) and record != self._earlier.get(name)

    def _on_own_clock(self, record: Record) -> Record:
        if self.is_here(record):
            return record
        # All ranks met at the same moment, which each has read on the clock of its host.
        return record._replace(progress_time=record.progress_time - record.met + self._met)


def remove_dead(root: str, store: RankStatusStore, own: os.stat_result) -> None:
    """Removes the folders in ``root`` of jobs that were killed, so that no rank was left to do it, but that of a store.

    ``own`` is of a file that has just been written there: its owner, and the time of the file server. Raises OSError if
    ``root`` cannot be listed.
    """
    for name in os.listdir(root):
        path = os.path.join(root, name)
        if not name.startswith(PREFIX) or path == store.path:
            continue
        with suppress(OSError):
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | FLAGS)
            try:
                files = [entry for entry in os.listdir(folder) if "@" in entry] if is_own(folder, own.st_uid) else []
                if files and all(_is_dead(file, folder, store, own) for file in files):
                    _remove(path, folder)
            finally:
                os.close(folder)


def _remove(path: str, folder: int) -> None:
    """Removes an open folder: another one that a member of the group has put in its place stays."""
    empty_folder(f"/proc/self/fd/{folder}")
    with suppress(OSError):
        os.rmdir(path)


def _is_dead(name: str, folder: int, store: RankStatusStore, own: os.stat_result) -> bool:
    record = read_record(name, folder, own.st_uid)
    if record is not None and (store.is_here(record) or store.is_gone_here(record)):
        return store.is_gone_here(record)
    # An empty file may be of a rank that is just starting. The processes of other hosts and containers cannot be seen
    # from here, but every living rank writes within a day.
    age = own.st_mtime - os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
    return age > (UNWRITTEN if record is None else SILENT)
