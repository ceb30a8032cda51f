"""Groups of ranks that are to fail: how they are started, and what is left of them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from paths import ROOT, SOURCES

LAUNCH = {
    "mpi": ["mpirun", "-q", "-np", "2"],
    "horovodrun over MPI": ["horovodrun", "--mpi", "-np", "2", "-H", "localhost:2"],
    "gloo": ["horovodrun", "--gloo", "-np", "2", "-H", "localhost:2"],
}
LIMIT = 60  # seconds after which a group that has not ended is killed, and its test fails


class Outcome(NamedTuple):
    """How a group has ended; seconds are from the fault until none of its processes was left."""

    code: int
    output: str
    seconds: float
    left: list


def run_with_fault(launcher, fault, rank, place, words, mark, **environment):
    """Starts two ranks with a fault built in, see with_fault.py, and waits until they have ended."""
    command = [*LAUNCH[launcher], sys.executable, "tests/commands/with_fault.py", fault, str(rank), place, str(mark)]
    with started([*command, "--", *words], PYTHONPATH=SOURCES, **environment) as group:
        output, _ = group.communicate(timeout=LIMIT)
        ended = time.time()
        left = processes_with(mark)
    assert mark.exists(), output
    return Outcome(group.returncode, output, ended - float(mark.read_text()), left)


@contextlib.contextmanager
def started(command, shell=None, **environment):
    """A group in a session of its own, standard error in its output; what is left of it is killed in the end.

    Its environment is that of the shell, or this process's with one thread.
    """
    env = {**(shell or {**os.environ, "OMP_NUM_THREADS": "1"}), **environment}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen([str(word) for word in command], cwd=ROOT, env=env, start_new_session=True, **pipes) as group:
        try:
            yield group
        finally:
            # By their folder, which no other training has.
            (folder,) = (word for word in command if str(word).startswith("models_root="))
            for pid in processes_with(folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def processes_with(word):
    """Ids of the processes that live and have this word on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if str(word).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def ranks_with(word):
    """Those of them that are ranks, in the order they were started."""
    return sorted(pid for pid in processes_with(word) if b"train_memory.py" in _words(pid)[:3])


def _words(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []


def checkpoints_in(models, training="*"):
    """Numbers of the updates whose checkpoints are complete, in the folder of the outputs or of one of them."""
    found = models.glob(f"{training}/checkpoints/step-*[0-9]/manifest.json")
    return sorted(int(path.parent.name[5:]) for path in found)


def wait_until(happened, group=None, seconds=60):
    """Waits until a function gives something true, and returns that; fails when the group ends before."""
    end = time.monotonic() + seconds
    while not happened():
        assert group is None or group.poll() is None, group.stdout.read()
        assert time.monotonic() < end
        time.sleep(0.02)
    return happened()
