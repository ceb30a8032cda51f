"""Attempts of a job share a store, but not what an earlier attempt has left there; timeouts of collectives."""

import datetime
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from partial_fc.distributed.watchdog import PRECEDENCE, START_TIMEOUT
from partial_fc_torch import process_group
from partial_fc_torch.process_group import _store_of_attempt, collective_limit


@pytest.fixture(params=["a file", "a port"])
def connect(request, tmp_path):
    """A function that opens another client of one store, as each process does."""
    limit = datetime.timedelta(seconds=20)

    def open_file():
        store = dist.FileStore(str(tmp_path / "store"))
        store.set_timeout(limit)
        return store

    if request.param == "a file":
        yield open_file
        return
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)
    yield lambda: dist.TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False, timeout=limit)


def meet(connect, ranks, early=()):
    """Returns the part of the store that each rank gets; the ranks in ``early`` start before the others."""
    with ThreadPoolExecutor(ranks) as threads:
        order = [*early, *(rank for rank in range(ranks) if rank not in early)]
        parts = {rank: threads.submit(_store_of_attempt, connect(), rank, ranks, 20) for rank in order}
        return [parts[rank].result() for rank in range(ranks)]


@pytest.mark.parametrize("step_timeout, start", [(3, 300), (600, 300), (3, 6)])
def test_a_collective_may_take_longer_than_the_watchdog_waits(step_timeout, start):
    limit = collective_limit(step_timeout, {"PARTIAL_FC_START_SECONDS": str(start)})
    assert limit > max(step_timeout, start) + 2 * PRECEDENCE
    assert collective_limit(3, {}) > START_TIMEOUT + 2 * PRECEDENCE


def test_the_processes_of_an_attempt_share_a_part_of_their_own(connect):
    first = meet(connect, 3)
    for part in first:
        part.set("address", "of the first attempt")
    # Fewer processes, of which rank 1 starts before rank 0 and sees the name of the first attempt.
    second = meet(connect, 2, early=[1])
    assert not second[0].check(["address"])
    second[0].set("address", "of the second attempt")
    assert [part.get("address").decode() for part in second] == ["of the second attempt"] * 2
    assert first[2].get("address").decode() == "of the first attempt"


def test_a_process_that_does_not_come_is_an_error(connect, monkeypatch):
    monkeypatch.setattr(process_group, "POLL", 0.01)
    for rank in (0, 1):
        with pytest.raises(dist.DistError):
            _store_of_attempt(connect(), rank, 2, seconds=0.2)


PROGRAM = """
import os
from partial_fc_torch.collectives import default_collectives
from partial_fc_torch.process_group import end_process_group, start_process_group
start_process_group("gloo", 20)
names = default_collectives.gather_object("names", os.environ["RANK"])
assert names == ["0", "1"] and "MASTER_PORT" in os.environ, names
end_process_group()
"""
AROUND = {"a script": '"$@"', "a container": 'unshare --pid --fork --mount-proc "$@"', "exec": 'exec "$@"'}


# With exec, the process of torchrun is the rank's, as without a program around it.
@pytest.mark.slow
@pytest.mark.parametrize("around", [*list(AROUND)[:2], pytest.param("exec", marks=pytest.mark.thorough)])
def test_ranks_of_torchrun_meet_whatever_program_is_around_them(around, tmp_path):
    """They meet in a file of this attempt that no other user can reach."""
    if "unshare" in AROUND[around] and subprocess.run(["unshare", "--pid", "--fork", "true"]).returncode:
        pytest.skip("needs root for namespaces of processes")
    (tmp_path / "around.sh").write_text(f"#!/bin/bash\n{AROUND[around]}\nexit $?\n")
    (tmp_path / "around.sh").chmod(0o755)
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--no-python"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [*run, tmp_path / "around.sh", sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    (store,) = tmp_path.glob("torchelastic_*/*/attempt_0/store")
    assert stat.S_IMODE(store.parent.parent.stat().st_mode) == 0o700
