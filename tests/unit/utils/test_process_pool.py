"""The map over processes."""

import os
import subprocess
import sys
import time
from functools import partial

import pytest

from partial_fc.utils.process_pool import AHEAD, in_chunks, ordered_map
from paths import with_root


def square_slowly(number):
    time.sleep(0.02 if number % 5 == 0 else 0)  # later tasks finish before earlier ones
    return number * number


def fail_at(bad, how, number):
    if number == bad:
        how(number)
    return number


def die(number):
    os._exit(3)


def complain(number):
    raise ValueError(f"{number} is bad")


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


def test_an_error_in_a_worker_is_raised_here():
    with pytest.raises(ValueError, match="9 is bad"):
        list(ordered_map(partial(fail_at, 9, complain), range(30), 2))


def test_a_worker_that_dies_is_an_error():
    with pytest.raises(OSError, match="a worker process exited without reporting an error .*fewer --workers"):
        list(ordered_map(partial(fail_at, 9, die), range(1000), 2))


def test_blocked_signals_stay_blocked():
    """A trainer leaves SIGTERM to its watchdog. In a process of its own: the resource tracker starts once."""
    code = "import signal\nfrom partial_fc.utils.process_pool import ordered_map\n"
    code += "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\nlist(ordered_map(abs, [1, 2], 2))\n"
    code += "assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())"
    subprocess.run([sys.executable, "-c", code], env=with_root(), check=True, timeout=60)


def test_chunks():
    assert list(in_chunks(iter(range(5)), 2)) == [[0, 1], [2, 3], [4]] and list(in_chunks([], 2)) == []
