"""The thread that ends a rank where its main thread cannot, in plain processes without MPI."""

import os
import signal
import subprocess
import sys
import time

import pytest

from paths import ROOT

LIMIT = 30  # seconds
BEGIN = """
import ctypes, os, sys, time
from partial_fc.distributed import watchdog
from partial_fc.distributed.env import Place
watchdog.block_signals()
rank, size = int(sys.argv[2]), int(sys.argv[3])
guard = watchdog.Watchdog(Place(rank, size, rank, size), sys.argv[1], {"PMIX_NAMESPACE": "test"})
guard.start()
time.sleep(0.5)  # until all are there
guard.met()
"""


@pytest.fixture
def rank(tmp_path):
    """Starts a process with a sentinel and these lines of its own; all are killed in the end."""
    processes = []

    def start(lines, number=0, size=1):
        command = [sys.executable, "-c", BEGIN + lines, str(tmp_path), str(number), str(size)]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        processes.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def ends(process, code):
    """What a process says before it ends with this code."""
    _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == code, errors
    return errors


def test_a_request_to_stop_is_noted_and_has_an_end(rank):
    lines = "watchdog.GRACE = 1.0\nguard.training_begun()\nos.kill(os.getpid(), 15)\ntime.sleep(0.5)\n"
    lines += "print(guard.stop_requested, file=sys.stderr)\nos.kill(os.getpid(), 10)\ntime.sleep(20)"
    assert ends(rank(lines), 1) == "True\nerror: asked to stop 1 s ago, but not at a step since: ends unsaved\n"


def test_before_training_there_is_nothing_to_save(rank):
    errors = ends(rank("os.kill(os.getpid(), 10)\ntime.sleep(20)"), 75)
    assert errors == "error: asked to stop before training began: there is nothing to save\n"


def test_what_is_marked_goes_on_and_what_is_not_ends_with_its_place(rank):
    lines = "guard.patience = 1.0\nstart = time.monotonic()\nwhile time.monotonic() < start + 3: guard.mark('work')\n"
    lines += "print('alive', file=sys.stderr)\ndef somewhere():\n    time.sleep(20)\nsomewhere()"
    errors = ends(rank(lines), 1)
    assert errors.startswith("alive\nerror: rank 0 (process ")
    assert "has not moved for 1 s: it stands in work" in errors and "in somewhere" in errors


def test_a_main_thread_that_keeps_the_lock_is_ended_too(rank):
    errors = ends(rank("guard.patience = 1.0\ntime.sleep(0.5)\nctypes.PyDLL(None).sleep(20)"), 1)
    assert "Timeout (" in errors and "error: " not in errors


def test_who_waits_for_one_that_works_waits_on(rank):
    waits = rank("guard.patience = 2.5\nguard.mark('all-gather x', waiting=True)\ntime.sleep(20)", 0, 2)
    works = "guard.patience = 1.0\nstart = time.monotonic()\nwhile time.monotonic() < start + 5:\n"
    works += "    guard.mark('work')\n    time.sleep(0.01)\nguard.stand_down()\nguard.leave()"
    assert ends(rank(works, 1, 2), 0) == ""
    assert waits.poll() is None


@pytest.mark.parametrize("number, word", [(signal.SIGKILL, "is gone without a word"), (signal.SIGSTOP, "is stopped")])
def test_a_rank_that_is_lost_is_told_once_by_the_others(rank, number, word):
    lines = "guard.patience = 2.0\nguard.mark('all-gather x', waiting=True, num_update=3)\ntime.sleep(20)"
    group = [rank(lines, number, 3) for number in range(3)]
    time.sleep(1.5)
    group[1].send_signal(number)
    told = "".join(ends(group[index], 1) for index in (0, 2))
    assert told.count("error: ") == 1 and word in told and "error: rank 1 (process " in told
    assert "at update 3, in all-gather x" in told


def test_a_rank_that_has_ended_well_is_not_missed(rank):
    ended = rank("guard.stand_down()\nguard.leave()", 1, 2)
    other = rank("time.sleep(2)\nguard.stand_down()\nguard.leave()", 0, 2)
    assert ends(ended, 0) == "" and ends(other, 0) == ""


def test_a_disk_that_hangs_does_not_hold_up_the_end(rank):
    lines = "guard.board.claim_error_report = guard.board.leave = lambda *_: time.sleep(60)\n"
    lines += "os.kill(os.getpid(), 10)\ntime.sleep(20)"
    began = time.monotonic()
    assert ends(rank(lines), 75) == "error: asked to stop before training began: there is nothing to save\n"
    assert time.monotonic() - began < 15
