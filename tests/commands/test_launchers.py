"""Every launcher on one host: its training is complete, and its processes listen only on the loopback interface."""

import contextlib
import re
import subprocess

import psutil
import pytest
from conftest import LAUNCHERS, VERIFIED, needs_torch
from groups import started
from outcome import check_outcome

LOOPBACK = {"127.0.0.1", "::1"}
EVERYWHERE = {"0.0.0.0", "::"}
# Launcher -> the only program that may listen on all interfaces, as docs/security.md says.
EXCEPTIONS = {
    "torchrun": "torchrun",
    "run.sh": "mpirun",
    "horovodrun over MPI": "mpirun",
    "horovodrun over Gloo": "horovodrun",
}
RANK = re.compile(r"python\S* (-u )?\S*train(_memory)?\.py (?!--nproc)")  # start of a rank's command line


def sockets(group):
    """Returns (status, address, command line) of the listening and connected TCP sockets of a group's processes."""
    seen = set()
    for process in [group, *group.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):  # it has just ended
            line = " ".join(process.cmdline())  # first, because it is empty once the process has ended
            for connection in process.net_connections("tcp"):
                if connection.status in (psutil.CONN_LISTEN, psutil.CONN_ESTABLISHED):
                    seen.add((connection.status, connection.laddr.ip, line))
    return seen


def watched(command, **environment):
    """Runs a training; returns its output and the sockets that it has used."""
    seen = set()
    with started(command, **environment) as group:
        tree = psutil.Process(group.pid)
        while True:
            with contextlib.suppress(psutil.Error):
                seen |= sockets(tree)
            with contextlib.suppress(subprocess.TimeoutExpired):
                output, _ = group.communicate(timeout=0.2)
                break
    assert group.returncode == 0, output
    return output, seen


def marks(launcher):
    slow = [] if launcher == "python" else [pytest.mark.slow]
    return [*slow, needs_torch] if "torch" in launcher else slow


@pytest.mark.parametrize("launcher", [pytest.param(name, marks=marks(name)) for name in LAUNCHERS])
def test_a_training_is_complete_and_listens_on_the_loopback_alone(launcher, settings, tmp_path):
    ranks, command, environment = LAUNCHERS[launcher]
    missing = tmp_path / "lfw.json"  # a set that the command line names must exist
    missing.write_text('{"val_targets": ["demo_val", "lfw"]}')
    words = [word for word in (*settings, *VERIFIED) if not word.startswith("val_targets")]
    output, seen = watched([*command, *words, "decode_processes=1", "--config", str(missing)], **environment)
    folder = tmp_path / "models" / "small-arcface-demo"
    check_outcome(folder, ranks, "torch" if "torch" in launcher else "mxnet")
    assert "\r" not in output  # no progress bar without a terminal
    assert str(folder) in output and "next:" in output
    assert output.count("lfw.bin") == 2  # a missing validation set is reported at the start and at the end

    listening = {(address, line) for status, address, line in seen if status == psutil.CONN_LISTEN}
    outside = {(address, line) for address, line in listening if address not in LOOPBACK}
    assert {address for address, _ in outside} <= EVERYWHERE
    exception = EXCEPTIONS.get(launcher)
    unexpected = [line for _, line in outside if exception is None or exception not in line]
    assert not unexpected, sorted(outside)
    if ranks > 1 and ("torch" in launcher or "Gloo" in launcher):  # ranks of MPI use shared memory
        # Gloo's ranks listen for an instant, but stay connected.
        assert any(address in LOOPBACK and RANK.search(line) for _, address, line in seen), seen
