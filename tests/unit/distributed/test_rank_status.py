"""The folder in which ranks leave word: what is read of it, who tells, and when it goes."""

import os
import subprocess
import sys
import time

import pytest

from partial_fc.distributed import rank_status
from partial_fc.distributed.rank_status import RankStatusStore, has_ended, is_gone, is_stopped, job_key, process_state


def test_the_key_is_that_of_all_ranks_of_one_job():
    mpi = {"OMPI_MCA_orte_precondition_transports": "7fde0760e55d8dd3-4d4f3f0fc8c60353", "PMIX_NAMESPACE": "12"}
    assert job_key(mpi, 1) == job_key(mpi, 2) == "7fde0760e55d8dd3-4d4f3f0fc8c60353"
    gloo = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "fd00::2/64", "HOROVOD_GLOO_RENDEZVOUS_PORT": "4711"}
    assert job_key(gloo, 1) == "fd00--2-64-4711"
    assert job_key({}, 1) != job_key({}, 2)


def test_records_are_read_as_they_were_last_written(tmp_path):
    boards = [RankStatusStore(str(tmp_path / "models"), "key", rank) for rank in (0, 1)]
    boards[0].write(7, 'a name with ü and "quotes" that is longer than a record ' * 20, waiting=True)
    boards[0].write(8, "all-gather features", waiting=True)
    assert [record.rank for record in boards[1].records()] == [0]  # rank 1 has written nothing
    boards[1].write(8, "batch", waiting=False)
    (zero, one) = boards[1].records()
    assert (zero.num_update, zero.doing, zero.waiting, zero.ended) == (8, "all-gather features", True, False)
    assert (one.pid, one.host) == (os.getpid(), boards[1].host) and abs(one.moved - time.time()) < 60
    assert boards[1].records("another host") == []


def test_a_write_costs_little(tmp_path):
    board = RankStatusStore(str(tmp_path), "key", 0)
    board.write(0, "warm-up", waiting=False)
    times = []
    for number in range(200):
        start = time.perf_counter()
        board.write(number, "all-gather features", waiting=True)
        times.append(time.perf_counter() - start)
    # A step has seven of them, and takes some ten milliseconds at least.
    assert sorted(times)[100] < 100e-6


def test_one_rank_tells_and_only_once(tmp_path):
    first, second = (RankStatusStore(str(tmp_path), "key", rank) for rank in (1, 0))
    assert not second.told()
    assert first.claim_error_report() and not second.claim_error_report() and not first.claim_error_report()
    assert second.told()


def test_what_an_earlier_job_with_the_same_key_has_left_counts_for_nothing(tmp_path):
    earlier = RankStatusStore(str(tmp_path), "key", 1)
    earlier.write(5, "batch", waiting=False)
    assert earlier.claim_error_report()
    before = time.time() - 2 * rank_status.STALE
    os.utime(os.path.join(earlier.path, rank_status.TOLD), (before, before))
    later = RankStatusStore(str(tmp_path), "key", 0)
    later._since = time.time() + 1  # as if the record were as old
    assert later.records() == []
    assert not later.told() and later.claim_error_report()


def test_the_last_that_leaves_removes_the_board(tmp_path):
    boards = [RankStatusStore(str(tmp_path), "key", rank) for rank in (0, 1)]
    for board in boards:
        board.write(1, "batch", waiting=False)
    boards[0].leave(1, "batch")
    assert [record.ended for record in boards[1].records()] == [True, False]
    boards[1].leave(1, "batch")
    assert list(tmp_path.iterdir()) == []


def test_the_board_of_a_job_that_was_killed_is_removed_by_the_next(tmp_path):
    program = "import sys; from partial_fc.distributed.rank_status import RankStatusStore; "
    program += "RankStatusStore(sys.argv[1], 'killed', 0).write(1, 'batch', False)"
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    (tmp_path / ".job-begun").mkdir()
    (tmp_path / ".job-begun" / "0@host").write_text("")  # may be a rank that starts just now
    (tmp_path / ".job-never").mkdir()
    (tmp_path / ".job-never" / "0@host").write_text("")
    os.utime(tmp_path / ".job-never" / "0@host", (1, 1))
    living = RankStatusStore(str(tmp_path), "living", 0)
    living.write(1, "batch", waiting=False)
    assert {path.name for path in tmp_path.iterdir()} == {".job-living", ".job-begun"}
    RankStatusStore(str(tmp_path), "third", 0)
    assert {path.name for path in tmp_path.iterdir()} == {".job-living", ".job-begun", ".job-third"}


def test_a_folder_that_cannot_be_made_is_passed_over(tmp_path):
    (tmp_path / "file").write_text("in the way")
    board = RankStatusStore(str(tmp_path / "file"), "key", 0)
    board.write(1, "batch", waiting=False)
    assert board.records() == [] and not board.told() and board.claim_error_report()
    board.leave(1, "batch")


def test_damaged_records_are_none(tmp_path):
    board = RankStatusStore(str(tmp_path), "key", 0)
    for name, content in (("1@" + board.host, b""), ("2@" + board.host, b"[1, 2]"), ("3@" + board.host, b"\xff\xfe")):
        with open(os.path.join(board.path, name), "wb") as file:
            file.write(content)
    board.write(1, "batch", waiting=False)
    assert [record.rank for record in board.records()] == [0]


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


def test_a_process_is_there_stopped_or_gone(sleeper, tmp_path):
    board = RankStatusStore(str(tmp_path), "key", 0)
    board.write(1, "batch", waiting=False)
    (mine,) = board.records()
    started = process_state(sleeper.pid)[1]
    record = mine._replace(pid=sleeper.pid, started=started)
    assert not is_gone(record) and not is_stopped(record)
    assert has_ended(sleeper.pid, started + 1)  # another process with the same id
    sleeper.send_signal(19)
    wait_for_state(sleeper.pid, "T")
    assert is_stopped(record) and not is_gone(record)
    sleeper.kill()
    wait_for_state(sleeper.pid, "Z")  # nobody has waited for it yet
    assert is_gone(record) and not is_stopped(record)
    sleeper.wait()
    assert is_gone(record)
