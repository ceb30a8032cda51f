"""The ordered map over worker processes."""

import os
import subprocess
import sys
import time

import pytest

from partial_fc.utils.process_pool import AHEAD, in_chunks, ordered_map
from paths import with_root


def square_slowly(number):
    time.sleep(0.02 if number % 5 == 0 else 0)  # later tasks finish before earlier ones
    return number * number


def fail(number):
    if number == 9:
        raise ValueError("9 is bad")


def die(number):
    if number == 9:
        os._exit(3)


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order_and_tasks_are_consumed_as_workers_become_free(workers):
    consumed = []

    def tasks():
        for number in range(60):
            consumed.append(number)
            yield number

    done = 0
    for number, square in ordered_map(square_slowly, tasks(), workers):
        assert (number, square) == (done, done * done)
        done += 1
        assert len(consumed) <= done + AHEAD * workers + 1
    assert done == 60


def test_one_task_starts_no_process():
    assert list(ordered_map(lambda task: os.getpid(), [7], 4)) == [(7, os.getpid())]
    assert list(ordered_map(square_slowly, [], 4)) == []


@pytest.mark.parametrize(
    "function, error, message", [(fail, ValueError, "9 is bad"), (die, OSError, "a worker process exited .*--workers")]
)
def test_an_error_or_the_death_of_a_worker_is_raised_here(function, error, message):
    with pytest.raises(error, match=message):
        list(ordered_map(function, range(1000), 2))


def test_blocked_signals_stay_blocked():
    """A trainer leaves SIGTERM to its watchdog. In a process of its own: the resource tracker starts once."""
    code = "import signal\nfrom partial_fc.utils.process_pool import ordered_map\n"
    code += "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\nlist(ordered_map(abs, [1, 2], 2))\n"
    code += "assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())"
    subprocess.run([sys.executable, "-c", code], env=with_root(), check=True, timeout=60)


def test_chunks():
    assert list(in_chunks(iter(range(5)), 2)) == [[0, 1], [2, 3], [4]] and list(in_chunks([], 2)) == []
