"""Starts groups of ranks, and finds the processes that are left when they fail."""

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pytest
from conftest import IN_TURN, LAUNCHERS, LIMIT, TORCH, needs_torch

from partial_fc.checkpoint import SavedClasses, read_arrays, read_manifest
from paths import ROOT, SOURCES
from waiting import happens

LAUNCH = {
    "mpi": ["mpirun", "-q", "-np", "2"],
    "horovodrun over MPI": ["horovodrun", "--mpi", "-np", "2", "-H", "localhost:2"],
    "gloo": ["horovodrun", "--gloo", "-np", "2", "-H", "localhost:2"],
    "torchrun": [TORCH / "python", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"],
    "launch.py": [TORCH / "python", "pytorch/launch.py", "--nproc_per_node=2"],
}
# Two ranks of train.py without a launcher: half of the CPU time.
TWO_RANKS = [*IN_TURN, "2", "train"]
# Settings of a training that would take hours.
ENDLESS = ["max_update=1000000", "lr_steps=[500000]", "verify_every=1000000", "save_every=1000000"]
# The environment of a login shell, without this clone's.
SHELL = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": os.environ["HOME"]}
SILENCE = 4  # seconds of host_timeout
LEAVE = 5  # seconds for the ranks to end after their launcher


class Outcome(NamedTuple):
    """The end of a group: exit code, output, seconds since the fault, ids of the remaining processes."""

    code: int
    output: str
    seconds: float
    left: list


def run_with_fault(launcher, fault, rank, place, arguments, mark, **environment):
    """Runs two ranks with a fault, see with_fault.py."""
    if launcher == "torchrun" and not TORCH.exists():
        pytest.skip(needs_torch.kwargs["reason"])
    interpreter = [] if launcher == "torchrun" else [sys.executable]
    program = [*interpreter, "tests/commands/with_fault.py", fault, str(rank), place, str(mark)]
    with started([*LAUNCH[launcher], *program, "--", *arguments], **{"PYTHONPATH": SOURCES, **environment}) as group:
        output, _ = group.communicate(timeout=LIMIT)
        happens(lambda: not processes_with(mark), LEAVE)
        left, ended = processes_with(mark), time.time()
    assert mark.exists(), output
    return Outcome(group.returncode, output, ended - float(mark.read_text()), left)


@contextlib.contextmanager
def started(command, shell=None, **environment):
    """Starts a group in a new session, with standard error in its output; kills its remaining processes at the end.

    The environment is ``shell``, or this process's environment with one thread.
    """
    env = {**(shell or {**os.environ, "OMP_NUM_THREADS": "1"}), **environment}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(
        [str(argument) for argument in command], cwd=ROOT, env=env, start_new_session=True, **pipes
    ) as group:
        try:
            yield group
        finally:
            # Find them by their output folder, which no other training uses.
            (folder,) = (argument for argument in command if str(argument).startswith("models_root="))
            for pid in processes_with(folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def launched(launcher, arguments):
    """Starts a group by an entry of LAUNCHERS."""
    _, command, environment = LAUNCHERS[launcher]
    return started([*command, *arguments], **environment)


def started_on(hosts, host, command, **environment):
    """Starts a group in the clone on a virtual host."""
    return started(hosts.command(host, command, ROOT), SHELL, **environment)


def read_until(group, text, times=1):
    """Returns the lines of output up to the next line with this text, or up to the ``times``-th such line."""
    lines = []
    for line in group.stdout:
        lines.append(line)
        times -= text in line
        if not times:
            return lines
    raise AssertionError("".join(lines))


def launcher_of(group, name):
    """Returns the shell of a script's group, or the shell's child, by the end of its program's name."""
    shell = psutil.Process(group.pid)
    return next(process for process in (shell, *shell.children()) if process.cmdline()[0].endswith(name))


def processes_with(text):
    """Returns the ids of the processes with this text in their command line, in the order of their start."""
    matches = []
    for process in psutil.process_iter():
        if process.pid != os.getpid() and str(text).encode() in b"\0".join(_command_line(process.pid)):
            with contextlib.suppress(psutil.NoSuchProcess):
                matches.append((process.create_time(), process.pid))
    return [pid for _, pid in sorted(matches)]  # by time: ids wrap around at pid_max


def ranks_with(text):
    """Returns the ids of the ranks among processes_with(text), in the order of their start."""
    programs = {b"train_memory.py", b"train.py"}
    lines = {pid: _command_line(pid) for pid in processes_with(text)}
    ranks = {pid: line for pid, line in lines.items() if b"--nproc" not in line}  # without train.py as their launcher
    return [pid for pid, line in ranks.items() if programs & set(map(os.path.basename, line[:3]))]


def _command_line(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []


def checkpoints_in(models, training="*"):
    """Returns the updates of the complete checkpoints in a folder of outputs."""
    manifests = models.glob(f"{training}/checkpoints/step-*[0-9]/manifest.json")
    return sorted(int(path.parent.name[5:]) for path in manifests)


def endless(settings):
    """Returns arguments of a training on several hosts that runs until it is stopped, and saves every update."""
    return [f"host_timeout={SILENCE}", *settings, *ENDLESS, "checkpoint_every=1"]


def digests(models, *patterns):
    """Returns file name -> SHA-256 of the files that a training saved; the patterns start in its folder."""
    files = [path for pattern in patterns for path in models.glob(f"*/{pattern}")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def checkpoint_contents(path):
    """Returns backbone, momentum and class centers of a checkpoint by name, and its manifest."""
    manifest = read_manifest(path)
    classes = SavedClasses.of_checkpoint(path, manifest)
    numbers = {field: classes.rows(field, np.arange(manifest.num_classes)) for field in classes.widths}
    return {**read_arrays(f"{path}/backbone.npz"), **numbers}, manifest


def wait_until(happened, group=None):
    """Waits until a function returns something true, and returns that; fails if the group ends before."""
    end = time.monotonic() + LIMIT
    while not happened():
        assert group is None or group.poll() is None, group.stdout.read()
        assert time.monotonic() < end
        time.sleep(0.02)
    return happened()
