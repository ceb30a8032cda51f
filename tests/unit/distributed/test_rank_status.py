"""The folder in which ranks record their status: what is read of it, who reports an error, and when it is removed."""

import os
import subprocess
import sys
import time

import pytest

from partial_fc.distributed import rank_status
from partial_fc.distributed.processes import has_ended, process_state
from partial_fc.distributed.rank_status import RankStatusStore, is_gone, is_stopped, job_key


def test_all_ranks_of_a_job_have_the_same_key():
    mpi = {"OMPI_MCA_orte_precondition_transports": "7fde0760e55d8dd3-4d4f3f0fc8c60353", "PMIX_NAMESPACE": "12"}
    assert job_key(mpi, 1) == job_key(mpi, 2) == "7fde0760e55d8dd3-4d4f3f0fc8c60353"
    gloo = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "fd00::2/64", "HOROVOD_GLOO_RENDEZVOUS_PORT": "4711"}
    assert job_key(gloo, 1) == "fd00--2-64-4711"
    assert job_key({}, 1) != job_key({}, 2)
    torchrun = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "fd00::2", "MASTER_PORT": "1234", "WORLD_SIZE": "2"}
    keys = [job_key({**mpi, **torchrun, "TORCHELASTIC_RESTART_COUNT": count}, 1) for count in "01"]
    assert keys == ["none-fd00--2-1234-0-2", "none-fd00--2-1234-1-2"]


def test_records_are_read_as_they_were_last_written(tmp_path):
    stores = [RankStatusStore(str(tmp_path / "models"), "key", rank).open() for rank in (0, 1)]
    stores[0].update('a name with ü and "quotes" that is longer than a record ' * 20, True, 7)
    stores[0].update("all-gather features", True, 8)
    assert [record.rank for record in stores[1].records()] == [0]  # rank 1 has written nothing
    stores[1].update("batch", False, 8)
    (zero, one) = stores[1].records()
    assert (zero.num_update, zero.doing, zero.waiting, zero.ended) == (8, "all-gather features", True, False)
    assert (one.pid, one.host) == (os.getpid(), stores[1].host) and abs(one.progress_time - time.time()) < 60
    assert stores[1].records("another host") == []


def test_one_rank_reports_the_error_once(tmp_path):
    first, second = (RankStatusStore(str(tmp_path), "key", rank).open() for rank in (1, 0))
    assert not second.error_reported()
    assert first.claim_error_report(75) and not second.claim_error_report() and not first.claim_error_report()
    assert second.error_reported() and second.reported_code() == 75


def test_the_exit_code_of_a_report_is_awaited(tmp_path, monkeypatch):
    store = RankStatusStore(str(tmp_path), "key", 0).open()
    assert store.reported_code() is None
    path = os.path.join(store.path, rank_status.REPORTED)
    open(path, "w").close()  # as another rank leaves it for a moment
    assert store.error_reported()
    monkeypatch.setattr(rank_status.time, "sleep", lambda seconds: open(path, "w").write("75"))
    assert store.reported_code() == 75
    open(path, "w").close()
    monkeypatch.setattr(rank_status.time, "sleep", lambda seconds: None)
    assert store.reported_code() == 1


def test_files_of_an_earlier_job_with_the_same_key_are_ignored(tmp_path):
    earlier = RankStatusStore(str(tmp_path), "key", 1).open()
    earlier.update("batch", False, 5)
    assert earlier.claim_error_report()
    before = time.time() - 2 * rank_status.STALE
    os.utime(os.path.join(earlier.path, rank_status.REPORTED), (before, before))
    later = RankStatusStore(str(tmp_path), "key", 0).open()
    later._oldest = time.time() + 1  # as if the record were as old
    assert later.records() == []
    assert not later.error_reported() and later.claim_error_report()


def test_the_last_rank_to_leave_removes_the_folder(tmp_path):
    stores = [RankStatusStore(str(tmp_path), "key", rank).open() for rank in (0, 1)]
    for store in stores:
        store.update("batch", False, 1)
    stores[0].leave()
    assert [record.ended for record in stores[1].records()] == [True, False]
    stores[1].leave()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_killed_job_is_removed_by_the_next(tmp_path):
    program = "import sys; from partial_fc.distributed.rank_status import RankStatusStore; "
    program += "RankStatusStore(sys.argv[1], 'killed', 0).open().update('batch', num_update=1)"
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    (tmp_path / ".job-begun").mkdir()
    (tmp_path / ".job-begun" / "0@host").write_text("")  # may be a rank that is just starting
    (tmp_path / ".job-never").mkdir()
    (tmp_path / ".job-never" / "0@host").write_text("")
    os.utime(tmp_path / ".job-never" / "0@host", (1, 1))
    living = RankStatusStore(str(tmp_path), "living", 0).open()
    living.update("batch", False, 1)
    assert {path.name for path in tmp_path.iterdir()} == {".job-living", ".job-begun"}
    RankStatusStore(str(tmp_path), "third", 0).open()
    assert {path.name for path in tmp_path.iterdir()} == {".job-living", ".job-begun", ".job-third"}


def test_a_folder_that_cannot_be_made_is_ignored(tmp_path):
    (tmp_path / "file").write_text("in the way")
    store = RankStatusStore(str(tmp_path / "file"), "key", 0).open()
    store.update("batch", False, 1)
    assert store.records() == [] and not store.error_reported() and store.claim_error_report()
    store.leave()


def test_damaged_records_are_ignored(tmp_path):
    store = RankStatusStore(str(tmp_path), "key", 0).open()
    for name, content in (("1@" + store.host, b""), ("2@" + store.host, b"[1, 2]"), ("3@" + store.host, b"\xff\xfe")):
        with open(os.path.join(store.path, name), "wb") as file:
            file.write(content)
    store.update("batch", False, 1)
    assert [record.rank for record in store.records()] == [0]


@pytest.fixture
def sleeper():
    """A process that does nothing."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


def wait_for_state(pid, states):
    end = time.monotonic() + 10
    while process_state(pid)[0] not in states:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_process_is_running_stopped_or_gone(sleeper, tmp_path):
    store = RankStatusStore(str(tmp_path), "key", 0).open()
    store.update("batch", False, 1)
    (own,) = store.records()
    started = process_state(sleeper.pid)[1]
    record = own._replace(pid=sleeper.pid, started=started)
    assert not is_gone(record) and not is_stopped(record)
    assert has_ended(sleeper.pid, started + 1)  # another process with the same id
    sleeper.send_signal(19)
    wait_for_state(sleeper.pid, "T")
    assert is_stopped(record) and not is_gone(record)
    sleeper.kill()
    wait_for_state(sleeper.pid, "Z")  # it has not been waited for yet
    assert is_gone(record) and not is_stopped(record)
    sleeper.wait()
    assert is_gone(record)
