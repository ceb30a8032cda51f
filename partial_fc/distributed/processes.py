"""This host and its processes, read from ``/proc``."""

import os
import time
from contextlib import suppress

from .env import RankInfo, rank_info

MPI_LAUNCHERS = ("mpirun", "orterun", "mpiexec", "orted", "prted", "prterun")


def since_boot() -> float:
    """Returns the seconds since this host booted, unaffected by changes of the time of day."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Returns the random id of this boot; "" if ``/proc`` does not show it."""
    return _read("sys/kernel/random/boot_id").decode().strip()


def pid_namespace() -> str:
    """Returns the id of the namespace of process ids, which differs between containers; "" if unknown."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def process_state(pid: int) -> tuple[str, int]:
    """Returns the state letter (see proc(5)) and the start time in ticks since boot; ("", 0) if there is no process."""
    fields = _stat(pid)
    return (fields[0].decode(), int(fields[19])) if fields else ("", 0)


def has_ended(pid: int, started: int) -> bool:
    """Returns whether the process with this id and start time has ended."""
    state, start_time = process_state(pid)
    return state in ("", "Z", "X") or start_time != started


def started_by_mpi() -> bool:
    """Returns whether an MPI launcher has started this process, perhaps through scripts."""
    return os.path.basename(_command_line(_starters()[-1])[0]) in MPI_LAUNCHERS


def launchers() -> list[tuple[int, int]]:
    """Returns (process id, start time) of the processes that have started this rank and are visible from it.

    These are scripts around the program, the launcher, and the launcher's parent if that is mpirun or run.sh.
    """
    pids = _starters()
    above = _parent(pids[-1])
    if any(argument.endswith("run.sh") or "mpirun" in argument for argument in _command_line(above)):
        pids.append(above)
    return [(pid, process_state(pid)[1]) for pid in pids if pid]


def _starters() -> list[int]:
    """Returns the ids of the scripts around this program, which share its rank, and of the launcher, which does not."""
    pids, rank = [os.getppid()], rank_info(os.environ)
    while rank.size > 1 and pids[-1] > 1 and _rank_of(pids[-1]) == rank:
        pids.append(_parent(pids[-1]))
    return pids


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def _rank_of(pid: int) -> RankInfo:
    """Returns the rank in the environment of a process."""
    pairs = (entry.partition("=") for entry in os.fsdecode(_read(f"{pid}/environ")).split("\0"))
    return rank_info({name: value for name, _, value in pairs})


def _stat(pid: int) -> list[bytes]:
    """Returns the fields of ``/proc/PID/stat`` after the command: state, parent, ...; empty without such a process."""
    return _read(f"{pid}/stat").rpartition(b")")[2].split()


def _command_line(pid: int) -> list[str]:
    return _read(f"{pid}/cmdline").decode(errors="replace").split("\0")


def _read(name: str) -> bytes:
    with suppress(OSError), open(f"/proc/{name}", "rb") as file:
        return file.read()
    return b""
