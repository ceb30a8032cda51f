"""Commands that are ended from outside: nothing of them is left, neither files nor processes."""

import os
import signal
import time
from contextlib import suppress

import pytest

from command_line import interruptible
from partial_fc.data.synthetic.draw import encode_face


@pytest.fixture
def packing(tmp_path):
    """A `pack` that is surely still at work: one of its files is a pipe nobody writes to."""
    for person in range(3):
        (tmp_path / "tree" / str(person)).mkdir(parents=True)
    face = encode_face(6, 0, 0)
    for image in range(200):
        (tmp_path / "tree" / "0" / f"{image}.jpg").write_bytes(face)
    os.mkfifo(tmp_path / "tree" / "1" / "pipe.jpg")
    (tmp_path / "tree" / "2" / "0.jpg").write_bytes(face)
    command = ["-m", "partial_fc", "sets", "pack", "tree", "out", "--workers", "2"]
    with interruptible(*command, cwd=tmp_path, start_new_session=True) as child:
        wait_until(lambda: (tmp_path / "out").exists() and len(processes_of(child.pid)) >= 3)
        time.sleep(0.5)  # the workers' imports
        yield child
        for process in processes_of(child.pid):
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)


def wait_until(condition):
    deadline = time.time() + 30
    while not condition() and time.time() < deadline:
        time.sleep(0.05)


def processes_of(session):
    """The living processes of a session: the command, its workers, and what keeps track of them."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat") as file:
            state, _parent, _group, own = file.read().rpartition(")")[2].split()[:4]
            if int(own) == session and state != "Z":
                found.append(int(name))
    return found


@pytest.mark.parametrize(
    "send, number, expected",
    [
        (os.killpg, signal.SIGINT, (130, "interrupted\n")),  # as a terminal does: to all processes
        (os.kill, signal.SIGTERM, (143, "terminated\n")),  # as `timeout` and `docker stop`
        (os.killpg, signal.SIGTERM, (143, "terminated\n")),  # as Slurm
    ],
)
def test_a_signal_ends_the_command_and_leaves_nothing(packing, tmp_path, send, number, expected):
    send(packing.pid, number)
    deadline = time.time() + 30
    while packing.poll() is None and time.time() < deadline:
        time.sleep(0.2)
        # Lets a worker that waits for the pipe end its chunk. On a busy machine it may open the pipe after the signal.
        with suppress(OSError):
            os.close(os.open(tmp_path / "tree" / "1" / "pipe.jpg", os.O_WRONLY | os.O_NONBLOCK))
    _, errors = packing.communicate(timeout=1)
    assert (packing.returncode, errors) == expected
    assert os.listdir(tmp_path) == ["tree"]
    wait_until(lambda: not processes_of(packing.pid))
    assert processes_of(packing.pid) == []


def test_workers_end_when_the_command_is_killed(packing):
    packing.kill()
    packing.wait()
    wait_until(lambda: not processes_of(packing.pid))
    assert processes_of(packing.pid) == []
