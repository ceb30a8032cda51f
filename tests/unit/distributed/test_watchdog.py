"""The thread that ends a rank when its main thread cannot, in plain processes without MPI."""

import errno
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from partial_fc.distributed.env import RankInfo
from partial_fc.distributed.lock_watch import LockWatch
from partial_fc.distributed.rank_status import RankStatusStore
from partial_fc.distributed.watchdog import State, Watchdog
from paths import with_root
from waiting import LIMIT, happens

BEGIN = """
import ctypes, os, sys, time
from partial_fc.distributed import watchdog
from partial_fc.distributed.env import RankInfo
from partial_fc.distributed.signals import block_signals
block_signals()
rank, size = int(sys.argv[2]), int(sys.argv[3])
guard = watchdog.Watchdog(RankInfo(rank, size, rank, size), sys.argv[1], {"PMIX_NAMESPACE": "test"})
guard.start()
def wait_until(condition):
    while not condition(): time.sleep(0.01)
def wait_for_checks(seconds):
    end = time.monotonic() + seconds
    wait_until(lambda: guard._checked_at > end)
wait_until(lambda: len(guard.rank_status.records()) == size)
guard.advance(watchdog.State.PREPARING)
guard.mark("setup", waiting=False)
"""


@pytest.fixture
def rank(tmp_path):
    """Starts a process with a watchdog that runs these lines of code; all processes are killed at the end."""
    processes = []

    def start(lines, number=0, size=1):
        command = [sys.executable, "-c", BEGIN + lines, str(tmp_path), str(number), str(size)]
        env = with_root()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(command, env=env, **pipes))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def ends(process, code):
    """Waits for a process to end with this exit code, and returns what it printed to standard error."""
    _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == code, errors
    return errors


def test_a_stop_request_is_recorded_and_limited(rank):
    lines = "watchdog.GRACE = 1.0\nguard.advance(watchdog.State.TRAINING)\nos.kill(os.getpid(), 15)\n"
    lines += "wait_until(lambda: guard.state == watchdog.State.STOPPING)\nos.kill(os.getpid(), 10)\ntime.sleep(600)"
    assert ends(rank(lines), 1) == "error: stop requested 1 s ago, but no step has ended since: exits without saving\n"


def test_a_rank_that_waits_for_a_save_on_another_rank_waits_after_a_stop_request(rank):
    waits = "guard.mark('all-gather status.checkpoint.write', waiting=True, num_update=0)\nwatchdog.GRACE = 2.0\n"
    waits += "guard.advance(watchdog.State.TRAINING)\nos.kill(os.getpid(), 15)\n"
    waits += "wait_until(lambda: guard.state == watchdog.State.STOPPING)\nwait_for_checks(watchdog.GRACE + 0.5)\n"
    waiting = rank(waits + "print('waited', flush=True)\ntime.sleep(600)", 0, 2)
    rank("while True:\n    guard.mark('save')\n    time.sleep(0.01)", 1, 2)
    assert waiting.stdout.readline() == "waited\n", ends(waiting, 0)
    assert waiting.poll() is None


def test_the_thread_that_reports_also_ends_the_process(rank):
    lines = "guard.report('error: a name\\x1b[2J', 3)\nos.kill(os.getpid(), 15)\n"
    lines += "time.sleep(1)\nprint('by the main thread', file=sys.stderr)\nguard.exit(1)"
    assert ends(rank(lines), 3) == "error: a name\\x1b[2J\nby the main thread\n"


def test_a_rank_that_loses_the_connection_ends_with_the_code_of_the_report(rank):
    stopped = rank("sys.stdin.readline()\nos.kill(os.getpid(), 15)\ntime.sleep(600)", 0, 2)
    lines = "from types import SimpleNamespace\nfrom partial_fc.distributed import run_rank\n"
    lines += "backend = SimpleNamespace(is_connection_error=lambda error: True, abort=int, error_message=str)\n"
    lines += "this = SimpleNamespace(watchdog=guard, rank=1, exit_code=2, backend=backend)\n"
    lines += "print('ready', flush=True)\nwait_until(guard.rank_status.error_reported)\n"
    lines += "run_rank._end(this, RuntimeError('Connection closed by peer'))"
    other = rank(lines, 1, 2)
    assert other.stdout.readline() == "ready\n"
    stopped.stdin.write("\n")
    stopped.stdin.flush()
    reports = ends(stopped, 75) + ends(other, 75)
    assert reports == "error: stop requested before training began: there is nothing to save\n"


def test_a_rank_without_progress_ends_with_its_stack_and_one_with_progress_does_not(rank):
    # Longer than what the watchdog takes for a pause of the whole process: on a busy machine there are shorter ones.
    lines = "guard.mark(num_update=0)\nguard.timeout = 5.0\nend = time.monotonic() + 6\n"
    lines += "while guard._checked_at < end:\n    guard.mark('work')\n    time.sleep(0.01)\n"
    lines += "print('alive', file=sys.stderr)\ndef somewhere():\n    time.sleep(600)\nsomewhere()"
    errors = ends(rank(lines), 1)
    assert errors.startswith("alive\nerror: rank 0 (process ")
    assert "made no progress for 5 s: it is at update 0, in work" in errors and "in somewhere" in errors


def test_the_setup_may_take_longer_than_a_step(rank):
    lines = "guard._start_limit = 3.0\nguard.timeout = 1.0\nwait_for_checks(2)\nprint('alive', file=sys.stderr)\n"
    errors = ends(rank(lines + "time.sleep(600)"), 1)
    assert errors.startswith("alive\nerror: rank 0 (process ") and "made no progress for 3 s: it is in setup" in errors


@pytest.mark.parametrize(
    "call, code, report",
    [
        ("pthread_mutex_lock(mutex)", -signal.SIGKILL, ""),  # which no signal interrupts
        ("sleep(300)", 1, "error: rank 0 (process "),  # the watchdog reports once the lock is free
    ],
)
def test_a_main_thread_that_keeps_the_lock_shows_where_and_is_ended(rank, call, code, report):
    lines = "lib, mutex = ctypes.PyDLL(None), (ctypes.c_char * 64)()\nlib.pthread_mutex_lock(mutex)\n"
    lines += (
        f"guard.mark(num_update=0)\nguard.timeout = 1.0\nwait_for_checks(2 * watchdog.TICK)\nlib.{call}\ntime.sleep(60)"
    )
    errors = ends(rank(lines), code)
    assert "has held Python's lock" in errors and 'File "<string>", line ' in errors and report in errors, errors


def test_if_no_process_can_be_started_no_file_is_left_open(monkeypatch):
    def refuse(*args, **options):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    watch, before = LockWatch(), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        watch.postpone(1.0)
    watch.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_job_that_is_suspended_for_longer_than_a_step_goes_on(rank):
    """Together with its helper process."""
    lines = "guard.mark(num_update=0)\nguard.timeout = 2.0\nwait_for_checks(2 * watchdog.TICK)\nprint(flush=True)\n"
    process = rank(lines + "for _ in range(20):\n    time.sleep(0.1)\n    guard.mark(num_update=1)")
    assert process.stdout.readline() == "\n"
    suspended = [psutil.Process(process.pid), *psutil.Process(process.pid).children()]
    assert len(suspended) == 2
    for each in suspended:
        each.suspend()
    time.sleep(7)
    for each in suspended:
        each.resume()
    assert ends(process, 0) == ""


def test_ranks_wait_for_one_that_makes_the_training_set_as_long_as_it_reads_or_writes(rank):
    starts = "guard.state = watchdog.State.STARTING\nguard._start_limit = 3.0\n"
    waits = (
        f"{starts}guard.mark('the start of the ranks', waiting=True)\nwait_for_checks(7)\nprint('waited', flush=True)\n"
    )
    waiting = rank(f"{waits}time.sleep(600)", 1, 2)
    writes = "guard.mark(watchdog.PREPARATION)\nend = time.monotonic() + 8\nnull = open(os.devnull, 'wb')\n"
    writes += "while time.monotonic() < end:\n    null.write(bytes(2 * watchdog.MOVED))\n    time.sleep(0.1)\n"
    makes = rank(f"{starts}{writes}time.sleep(600)", 0, 2)
    assert waiting.stdout.readline() == "waited\n", ends(waiting, 0)
    report = ends(makes, 1) + ends(waiting, 1)  # one of them reports
    assert report.startswith("error: rank 0 (process ") and report.count("\n") == 1
    assert "did not join the other ranks: no progress for 3 s, it is in the preparation of the training set" in report


def test_a_rank_that_waits_for_a_busy_rank_waits_on(rank):
    waits = "guard.mark('all-gather x', waiting=True, num_update=0)\nguard.timeout = 2.5\n"
    waits += "wait_for_checks(guard.timeout + watchdog.PRECEDENCE + 1)\nprint('waited', flush=True)\ntime.sleep(600)"
    waiting = rank(waits, 0, 2)
    rank("while True:\n    guard.mark('work')\n    time.sleep(0.01)", 1, 2)
    assert waiting.stdout.readline() == "waited\n", ends(waiting, 0)
    assert waiting.poll() is None


@pytest.mark.parametrize(
    "number, message", [(signal.SIGKILL, "exited without reporting an error"), (signal.SIGSTOP, "is stopped")]
)
def test_a_lost_rank_is_reported_once_by_the_others(rank, number, message, tmp_path):
    lines = "guard.mark('all-gather x', waiting=True, num_update=3)\nsys.stdin.readline()\n"
    lines += "guard.timeout = 1.0\ntime.sleep(600)"
    group = [rank(lines, number, 3) for number in range(3)]
    store = RankStatusStore(str(tmp_path), "test", 3, key_repeats=False).open()
    assert happens(lambda: [record.num_update for record in store.records()] == [3, 3, 3])
    group[1].send_signal(number)
    for index in (0, 2):
        if number == signal.SIGSTOP:
            group[index].stdin.write("\n")
            group[index].stdin.flush()
    reports = "".join(ends(group[index], 1) for index in (0, 2))
    assert reports.count("error: ") == 1 and message in reports and "error: rank 1 (process " in reports
    assert "at update 3, in all-gather x" in reports


def test_a_rank_that_ended_normally_is_not_reported(rank):
    ended = rank("guard.stand_down()\nguard.leave()", 1, 2)
    lines = "store = guard.rank_status\nwait_until(lambda: store.is_gone(store.records()[1]))\n"
    lines += "wait_for_checks(3 * watchdog.TICK)\n"
    other = rank(lines + "guard.stand_down()\nguard.leave()", 0, 2)
    assert ends(ended, 0) == "" and ends(other, 0) == ""


@pytest.mark.parametrize("limit", [5.0, 0.1], ids=["within the limit", "after it"])
def test_a_rank_that_starts_late_sees_the_refusal(limit, tmp_path):
    program = "import sys\nfrom partial_fc.distributed import watchdog\n"
    program += "from partial_fc.distributed.rank_status import RankStatusStore\nwatchdog.REFUSAL = float(sys.argv[2])\n"
    program += "watchdog.refuse(RankStatusStore(sys.argv[1], 'test', 0).open(), True, 2, 'error: no such set')"
    command = [sys.executable, "-c", program, str(tmp_path / "models"), str(limit)]
    with subprocess.Popen(command, env=with_root(), stderr=subprocess.PIPE, text=True) as refused:
        assert refused.stderr.readline() == "error: no such set\n"
        time.sleep(1)
        assert (refused.poll() is None) == (limit > 1)
        late = RankStatusStore(str(tmp_path / "models"), "test", 1).open()
        late.update()
        assert late.reported_code() == 2 and ends(refused, 2) == ""
    late.leave()
    assert not list(tmp_path.iterdir())


def test_a_disk_that_hangs_does_not_delay_the_end(rank):
    lines = "guard.rank_status.claim_error_report = guard.rank_status.leave = lambda *_: time.sleep(600)\n"
    lines += "os.kill(os.getpid(), 10)\ntime.sleep(600)"
    assert ends(rank(lines), 75) == "error: stop requested before training began: there is nothing to save\n"


def test_the_state_of_a_rank_only_moves_forward(tmp_path):
    guard = Watchdog(RankInfo(0, 1, 0, 1), str(tmp_path), {})
    guard.stand_down()
    guard.advance(State.STOPPING)  # by the watchdog thread, at the same time
    assert guard.state is State.ENDING
