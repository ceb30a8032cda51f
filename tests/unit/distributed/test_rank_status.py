"""The rank status store: which records are read, who reports an error, and when the folder is removed."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from partial_fc.distributed import rank_status
from partial_fc.distributed.processes import has_ended, process_state, since_boot
from partial_fc.distributed.rank_status import RankStatusStore, job_key
from partial_fc.utils.staging import empty_folder
from waiting import happens


def test_all_ranks_of_a_job_have_the_same_key():
    mpi = {"OMPI_MCA_orte_precondition_transports": "7fde0760e55d8dd3-4d4f3f0fc8c60353", "PMIX_NAMESPACE": "12"}
    assert job_key(mpi, 1) == job_key(mpi, 2) == "7fde0760e55d8dd3-4d4f3f0fc8c60353"
    gloo = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "fd00::2/64", "HOROVOD_GLOO_RENDEZVOUS_PORT": "4711"}
    assert job_key(gloo, 1) == "fd00--2-64-4711"
    assert job_key({}, 1) != job_key({}, 2)
    torchrun = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "fd00::2", "MASTER_PORT": "1234", "WORLD_SIZE": "2"}
    assert job_key({**torchrun, "LOCAL_WORLD_SIZE": "2"}, 1).endswith(f"-{socket.gethostname()}")  # of one host
    keys = [job_key({**mpi, **torchrun, "TORCHELASTIC_RESTART_COUNT": count}, 1) for count in "01"]
    assert keys == ["none-fd00--2-1234-0-2", "none-fd00--2-1234-1-2"]
    other = {"MASTER_ADDR": "host0", "MASTER_PORT": "1234", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}  # of PyTorch
    assert job_key(other, 1) == job_key(other, 2) == "-host0-1234--4"
    alone = {**other, "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    assert job_key(alone, 1) != job_key(alone, 2)


def store_in(folder, rank=0, host=None):
    """An open store, by default on this host."""
    store = RankStatusStore(str(folder), "key", rank)
    if host:
        store.host, store._boot = host, f"boot of {host}"
    return store.open()


def test_records_are_read_as_they_were_last_written(tmp_path):
    stores = [store_in(tmp_path / "models", rank) for rank in (0, 1)]
    stores[0].update('a name with ü and "quotes" that is longer than a record ' * 20, True, 7)
    stores[0].update("all-gather features", True, 8)
    assert [record.rank for record in stores[1].records()] == [0]  # rank 1 has written nothing
    stores[1].update("ü" * 200, False, 8)
    (zero, one) = stores[1].records()
    assert (zero.num_update, zero.doing, zero.waiting, zero.ended) == (8, "all-gather features", True, False)
    assert (one.pid, one.host) == (os.getpid(), stores[1].host) and abs(one.progress_time - since_boot()) < 60


def test_one_rank_reports_the_error_once_and_all_take_its_exit_code(tmp_path):
    first, second = (store_in(tmp_path, rank) for rank in (1, 0))
    assert not second.error_reported() and second.reported_code() is None
    assert first.claim_error_report(75) and not second.claim_error_report() and not first.claim_error_report()
    assert second.error_reported() and second.reported_code() == 75
    path = Path(second.path, rank_status.REPORTED)
    path.write_text("")  # as another rank leaves it for a moment
    threading.Timer(0.05, path.write_text, ["[77]"]).start()
    assert second.error_reported() and second.reported_code() == 77
    path.write_text("")
    assert second.reported_code() == 1


# Attempts of one job with the same key, as with a fixed address and port -----------------------------

KILLED = """
import sys
from partial_fc.distributed.rank_status import RankStatusStore
store = RankStatusStore(sys.argv[1], sys.argv[2], 1).open()
store.update("batch", num_update=5)
if "report" in sys.argv: store.claim_error_report(7)
"""


def killed(folder, key="key", *options):
    """Leaves the files of a rank 1 that is killed."""
    subprocess.run([sys.executable, "-c", KILLED, str(folder), key, *options], check=True)


def began(folder, seconds_ago):
    """A store of a process that started so long ago."""
    store = RankStatusStore(str(folder), "key", 0)
    store._started_at = since_boot() - seconds_ago
    return store.open()


@pytest.mark.parametrize("calls, is_lost", [("", True), ("leave", False), ("claim_error_report leave", True)])
def test_a_rank_that_was_killed_or_ended_after_a_report_is_lost(tmp_path, calls, is_lost):
    store = RankStatusStore(str(tmp_path), "key", 0, key_repeats=False).open()
    store.update()
    program = "import sys\nfrom partial_fc.distributed.rank_status import RankStatusStore\n"
    program += "store = RankStatusStore(sys.argv[1], 'key', 1, key_repeats=False).open()\nstore.update()\n"
    program += "for call in sys.argv[2:]: getattr(store, call)()"
    subprocess.run([sys.executable, "-c", program, str(tmp_path), *calls.split()], check=True)
    assert (store.find_lost(2) is not None) == is_lost


@pytest.mark.parametrize("seconds_ago, seen", [(0, False), (3600, True)], ids=["an earlier attempt", "this attempt"])
def test_a_rank_that_is_gone_counts_if_it_wrote_after_this_process_started(tmp_path, seconds_ago, seen):
    killed(tmp_path)
    store = began(tmp_path, seconds_ago)
    assert bool(store.records()) == bool(store.find_lost(2)) == seen
    store.join("drawn name")
    assert [record.rank for record in store.records()] == [0]


def test_a_report_of_an_earlier_attempt_is_removed_and_one_of_this_attempt_is_not(tmp_path):
    killed(tmp_path, "key", "report")
    later = began(tmp_path, 3600)  # as if it had waited for the report
    assert later.error_reported() and later.reported_code() == 7 and not later.claim_error_report()
    time.sleep(0.02)  # a tick of process start times
    restarted = began(tmp_path, 0)
    assert not restarted.error_reported() and restarted.claim_error_report()


def test_only_a_record_of_another_host_that_changes_is_of_a_running_rank(tmp_path):
    other = store_in(tmp_path, 1, "elsewhere")
    other.update("batch")
    store = store_in(tmp_path)
    store.update()
    assert [record.rank for record in store.records()] == [0]
    other.refresh()
    assert [record.rank for record in store.records()] == [0, 1]
    drawn_key = RankStatusStore(str(tmp_path), "key", 0, key_repeats=False).open()
    assert [record.rank for record in drawn_key.records()] == [1]


def test_jobs_with_one_key_do_not_mix_once_their_ranks_are_connected(tmp_path):
    job = [store_in(tmp_path, 0, "a"), store_in(tmp_path, 1, "b")]
    other = store_in(tmp_path, 0, "c")
    for store in job:
        store.join("one")
    other.join("two")
    assert [record.host for record in job[0].records()] == ["a", "b"]
    assert [record.host for record in other.records()] == ["c"]


def test_progress_on_another_host_is_converted_to_this_hosts_clock(tmp_path, monkeypatch):
    store, other = store_in(tmp_path), store_in(tmp_path, 1, "elsewhere")
    store.join("drawn name")
    with monkeypatch.context() as patched:  # a host that booted a day earlier
        now = since_boot()
        patched.setattr(rank_status, "since_boot", lambda: now + 86400)
        other.join("drawn name")
        patched.setattr(rank_status, "since_boot", lambda: now + 86400 + 7)
        other.update("batch")
    record = store.records()[1]
    assert record.progress_time - store._connected == pytest.approx(7, abs=1)


# What is removed ------------------------------------------------------------------------------------


def test_the_last_rank_to_leave_removes_the_folder(tmp_path):
    stores = [store_in(tmp_path, rank) for rank in (0, 1)]
    for store in stores:
        store.update("batch", False, 1)
    stores[0].leave()
    assert [record.ended for record in stores[1].records()] == [True, False]
    stores[1].leave()
    assert list(tmp_path.iterdir()) == []
    killed(tmp_path)
    store_in(tmp_path).leave()
    assert list(tmp_path.iterdir()) == []


def test_the_last_rank_to_leave_removes_a_parent_that_the_job_has_created_and_left_empty(tmp_path):
    for used in (False, True):
        stores = [store_in(tmp_path / "models", rank) for rank in (0, 1)]
        if used:
            (tmp_path / "models" / "run").mkdir()
        for store in stores:
            store.leave()
        assert (tmp_path / "models").exists() == used


def test_the_folder_of_a_killed_job_is_removed_when_nobody_has_written_to_it_for_a_week(tmp_path):
    for name in ("killed", "running", "starting"):
        killed(tmp_path, name)
    week_ago = time.time() - 7.1 * 86400
    for path in [*tmp_path.glob("*"), *tmp_path.glob("*/*")]:
        os.utime(path, (week_ago, week_ago))
    (record,) = (tmp_path / ".job-running").iterdir()
    os.utime(record)
    os.utime(tmp_path / ".job-starting")
    (tmp_path / ".job-link").symlink_to(tmp_path / ".job-killed")
    RankStatusStore(str(tmp_path), "next", 0).open()
    assert {path.name for path in tmp_path.iterdir()} == {".job-running", ".job-starting", ".job-next", ".job-link"}


def test_a_folder_that_another_user_has_moved_there_stays(tmp_path, monkeypatch):
    """Before the check of a killed job's folder, or between the check and the removal."""

    def swap(place):
        (tmp_path / ".job-killed").rename(tmp_path / "moved")
        (tmp_path / "data").rename(tmp_path / ".job-killed")
        empty_folder(place)

    killed(tmp_path, "killed")
    for name in ("data", ".job-earlier"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.rec").write_text("precious")
    for path in [*tmp_path.glob("*"), *tmp_path.glob("*/*")]:
        os.utime(path, (0, 0))
    monkeypatch.setattr(rank_status, "empty_folder", swap)
    RankStatusStore(str(tmp_path), "next", 0).open()
    assert list((tmp_path / "moved").iterdir()) == []
    for name in (".job-killed", ".job-earlier"):
        assert (tmp_path / name / "train.rec").read_text() == "precious"


def test_a_rank_in_another_container_of_this_host_is_treated_like_one_on_another_host(tmp_path):
    """Its process id has no meaning here: the rank is neither reported nor killed."""
    store, other = (RankStatusStore(str(tmp_path), "key", rank) for rank in (0, 1))
    other._namespace, other._started = "pid:[1]", other._started + 1
    for each in (store, other):
        each.open().update("batch", False, 1)
    assert [record.rank for record in store.records()] == [0, 1] and store.find_lost(2) is None
    store.kill([1])
    store.leave()
    assert os.path.exists(store.path)


def test_launchers_include_the_scripts_around_a_rank_and_what_started_them():
    """The first process of a container has none."""
    program = "from partial_fc.distributed.processes import launchers; print(*(pid for pid, _ in launchers()))"
    rank = {"TORCHELASTIC_RUN_ID": "1", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    wrapped = ["bash", "-c", 'bash -c \'"$@"; true\' 0 "$@"; echo $$', "0", sys.executable, "-c", program]
    command = {"env": {**os.environ, **rank}, "capture_output": True, "text": True, "timeout": 60}
    found, outer = subprocess.run(wrapped, **command).stdout.splitlines()
    assert found.split()[1:3] == [outer, str(os.getpid())]  # perhaps followed by tests/run.sh
    alone = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", *wrapped[-3:]], **command)
    if alone.returncode:
        pytest.skip("needs root for namespaces of processes")
    assert alone.stdout.split() == []


def test_a_folder_that_cannot_be_made_is_ignored(tmp_path):
    (tmp_path / "file").write_text("in the way")
    store = store_in(tmp_path / "file")
    store.update("batch", False, 1)
    assert store.records() == [] and not store.error_reported() and store.claim_error_report()
    store.leave()


# Hostile files --------------------------------------------------------------------------------------


def test_invalid_records_are_ignored(tmp_path):
    store = store_in(tmp_path)
    store.update()
    valid = store.records()[0]._replace(rank=1)
    path = Path(store.path, f"1@{store.host}")
    changes = [{"pid": pid} for pid in (-1, 0, 1, True, "7", 2**70)]
    changes += [{"rank": 7}, {"started": None}, {"doing": 1}, {"progress_time": float("inf")}]
    hostile = [json.dumps(valid._replace(**change)) for change in changes]
    for text in (*hostile, "", "[1, 2]", "\udcff\udcfe", "7", "[" * 5000):
        path.write_text(json.dumps(valid))
        assert [record.rank for record in store.records()] == [0, 1]
        path.write_text(text, errors="surrogateescape")
        assert [record.rank for record in store.records()] == [0], text


def test_the_folder_is_private_and_no_link_is_followed(tmp_path):
    os.mkdir(tmp_path / ".job-key", 0o777)
    os.chmod(tmp_path / ".job-key", 0o777)  # as with umask 0
    victim = tmp_path / "victim"
    victim.write_text("precious")
    store = RankStatusStore(str(tmp_path), "key", 0)
    link = os.path.join(store.path, f"0@{store.host}")
    os.symlink(victim, link)
    store.open().update("batch")
    assert victim.read_text() == "precious" and store.records() == []
    os.remove(link)
    os.symlink(victim, os.path.join(store.path, rank_status.REPORTED))
    store.open().update("batch")
    assert stat.S_IMODE(os.stat(store.path).st_mode) == 0o700 and len(store.records()) == 1
    assert not store.error_reported() and not store.claim_error_report() and victim.read_text() == "precious"
    os.symlink(tmp_path / ".job-key", tmp_path / ".job-link")
    assert RankStatusStore(str(tmp_path), "link", 1).open().records() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_files_of_another_user_are_ignored(tmp_path):
    store = store_in(tmp_path)
    store.update("batch")
    other = os.path.join(store.path, f"1@{store.host}")
    with open(other, "w") as file:
        json.dump(store.records()[0]._replace(rank=1), file)
    assert len(store.records()) == 2
    os.chown(other, 1234, -1)
    assert len(store.records()) == 1
    os.chown(store.path, 1234, -1)
    assert store_in(tmp_path, 2).records() == []


def test_a_process_is_running_stopped_or_gone(tmp_path):
    store = store_in(tmp_path)
    store.update("batch", False, 1)
    with subprocess.Popen(["sleep", "60"]) as process:
        started = process_state(process.pid)[1]
        record = store.records()[0]._replace(pid=process.pid, started=started)
        assert not store.is_gone(record) and not store.is_stopped(record)
        assert has_ended(process.pid, started + 1)  # another process with the same id
        process.send_signal(signal.SIGSTOP)
        assert happens(lambda: store.is_stopped(record), 10) and not store.is_gone(record)
        process.kill()
        assert happens(lambda: store.is_gone(record), 10) and not store.is_stopped(record)  # a zombie until wait()
    assert store.is_gone(record)
