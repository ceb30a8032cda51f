"""Processes of this host, as ``/proc`` shows them."""

import os

MPI_LAUNCHERS = ("mpirun", "orterun", "mpiexec", "orted", "prted", "prterun")


def process_state(pid: int) -> tuple[str, int]:
    """Returns the state of a process (a letter, see proc(5)) and its start time in ticks since boot; ("", 0): none."""
    fields = _stat(pid)
    return (fields[0].decode(), int(fields[19])) if fields else ("", 0)


def has_ended(pid: int, started: int) -> bool:
    """Returns whether the process with this id and start time has ended, in whatever way."""
    state, start_time = process_state(pid)
    return state in ("", "Z", "X") or start_time != started


def started_by_mpi() -> bool:
    """Returns whether the parent of this process is a launcher of MPI."""
    return _command_line(os.getppid())[0] in MPI_LAUNCHERS


def launchers() -> list[tuple[int, int]]:
    """Returns (process id, start time) of the parent, and of the grandparent if it is mpirun or the shell of run.sh."""
    parent = os.getppid()
    pids = [parent]
    fields = _stat(parent)
    grandparent = int(fields[1]) if fields else 0
    if any(argument.endswith("run.sh") or "mpirun" in argument for argument in _command_line(grandparent)):
        pids.append(grandparent)
    return [(pid, process_state(pid)[1]) for pid in pids]


def _stat(pid: int) -> list[bytes]:
    """The fields of ``/proc/PID/stat`` after the command: state, parent, ...; empty without such a process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def _command_line(pid: int) -> list[str]:
    """The arguments of a process, the first without its folder; [""] without such a process."""
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
            arguments = file.read().split("\0")
    except OSError:
        return [""]
    return [os.path.basename(arguments[0]), *arguments[1:]]
