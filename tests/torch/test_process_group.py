"""Attempts of a job in one store, none of which uses what an earlier one has left there; limits of collectives."""

import datetime
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from partial_fc.distributed.watchdog import PRECEDENCE, START
from partial_fc_torch import process_group
from partial_fc_torch.process_group import _store_of_attempt, collective_limit, private_folder


@pytest.fixture(params=["a file", "a port"])
def connect(request, tmp_path):
    """A function that returns another client of one store, as each process has its own."""
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


def meet(connect, ranks, late=()):
    """The parts of the store that as many processes get; those of ``late`` come first, and wait for rank 0."""
    with ThreadPoolExecutor(ranks) as threads:
        order = [*late, *(rank for rank in range(ranks) if rank not in late)]
        parts = {rank: threads.submit(_store_of_attempt, connect(), rank, ranks, 20) for rank in order}
        return [parts[rank].result() for rank in range(ranks)]


@pytest.mark.parametrize("step_timeout, start", [(3, 300), (600, 300), (3, 6)])
def test_a_collective_may_take_longer_than_the_watchdog_waits(step_timeout, start):
    limit = collective_limit(step_timeout, {"PARTIAL_FC_START_SECONDS": str(start)})
    assert limit > max(step_timeout, start) + 2 * PRECEDENCE
    assert collective_limit(3, {}) > START + 2 * PRECEDENCE


def test_the_processes_of_an_attempt_share_a_part_of_their_own(connect):
    first = meet(connect, 3)
    for part in first:
        part.set("address", "of the first attempt")
    # Another number of processes, some of which are there before rank 0 and see the name of the first attempt.
    second = meet(connect, 2, late=[1])
    assert not second[0].check(["address"])
    second[0].set("address", "of the second attempt")
    assert [part.get("address").decode() for part in second] == ["of the second attempt"] * 2
    assert first[2].get("address").decode() == "of the first attempt"


def test_a_process_that_does_not_come_is_an_error(connect, monkeypatch):
    monkeypatch.setattr(process_group, "POLL", 0.01)
    for rank in (0, 1):
        with pytest.raises(dist.DistError):
            _store_of_attempt(connect(), rank, 2, seconds=0.2)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_the_folder_of_a_store_is_the_users_alone_and_goes_with_its_launcher(temporary):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as launcher:
        folder = private_folder(launcher.pid)
        assert folder == private_folder(launcher.pid) and stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    own = private_folder(os.getpid())
    assert [str(path) for path in temporary.iterdir()] == [own] != [folder]


@pytest.mark.parametrize("planted", ["folder", "link", "file"])
def test_a_folder_that_others_could_have_made_is_refused(temporary, planted):
    path = private_folder(os.getpid())
    os.rmdir(path)
    if planted == "folder":
        os.mkdir(path)
        os.chmod(path, 0o755)
    elif planted == "link":
        os.symlink(temporary, path)
    else:
        open(path, "w").close()
    with pytest.raises(OSError, match="is not a folder of this user alone: remove it, or set TMPDIR"):
        private_folder(os.getpid())
