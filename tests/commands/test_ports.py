"""Which addresses the processes of a training listen at, under every launcher on one host (docs/security.md)."""

import contextlib
import subprocess
import sys

import psutil
import pytest
from conftest import horovodrun, needs_torch
from groups import LAUNCH, started

LOOPBACK = {"127.0.0.1", "::1"}
EVERYWHERE = {"0.0.0.0", "::"}
# Command -> programs that listen on all interfaces, which is what docs/security.md says of them; no other may.
LAUNCHERS = {
    "pytorch/run.sh": (["bash", "pytorch/run.sh"], set()),
    "torchrun": ([*LAUNCH["torchrun"], "train.py"], {"torch.distributed.run"}),
    "run.sh": (["bash", "run.sh"], {"mpirun"}),
    "horovodrun over MPI": (horovodrun("--mpi")[1], {"mpirun"}),
    "python": ([sys.executable, "train_memory.py"], set()),
    "horovodrun over Gloo": (horovodrun("--gloo")[1], {"horovodrun"}),
}


def listening(group):
    """(address, command line) of each TCP socket at which the processes of a group listen."""
    found = set()
    for process in [group, *group.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):  # it has just ended
            line = " ".join(process.cmdline())  # first: that of a process which ends meanwhile is empty
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found.add((connection.laddr.ip, line))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=[needs_torch][: "torch" in name]) for name in LAUNCHERS])
def test_one_host_listens_on_the_loopback_alone(name, settings):
    command, exceptions = LAUNCHERS[name]
    found = set()
    with started([*command, *settings, "max_update=2"], NP="2") as group:
        tree = psutil.Process(group.pid)
        while True:
            with contextlib.suppress(psutil.Error):
                found |= listening(tree)
            with contextlib.suppress(subprocess.TimeoutExpired):
                output, _ = group.communicate(timeout=0.2)
                break
    assert group.returncode == 0, output
    outside = {(address, line) for address, line in found if address not in LOOPBACK}
    assert {address for address, _ in outside} <= EVERYWHERE
    unexpected = [line for _, line in outside if not any(program in line for program in exceptions)]
    assert not unexpected, sorted(outside)
    if "torch" in name or "Gloo" in name:  # ranks of MPI use shared memory
        assert any("train" in line for _, line in found), found
