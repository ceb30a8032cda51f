"""Work ahead of time: in order, bounded, parallel, and with all errors reported."""

import gc
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import pytest

from partial_fc.data import prefetch
from partial_fc.data.prefetch import Prefetcher
from paths import ROOT
from waiting import happens


def reader_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("reader")]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = len(reader_threads())
    yield
    gc.collect()
    assert happens(lambda: len(reader_threads()) == before, 5)


def following(position):
    return position + 1


def test_work_is_done_ahead_up_to_the_limit():
    done = []
    prefetcher = Prefetcher(done.append, following, threads=2, ahead=4)
    prefetcher.get(10)
    assert happens(lambda: len(done) >= 5, 5)
    time.sleep(0.05)
    assert sorted(done) == [10, 11, 12, 13, 14]


def test_prefetched_results_are_dropped_for_another_place():
    prefetcher = Prefetcher(lambda position: position, following, threads=2, ahead=4)
    assert [prefetcher.get(position) for position in (0, 1, 50, 51, 0)] == [0, 1, 50, 51, 0]


@pytest.mark.parametrize(
    "error, kind",
    [(ValueError("key 7"), ValueError), (MemoryError("key 7"), MemoryError), (SystemExit(7), RuntimeError)],
)
def test_an_error_in_a_thread_is_raised_at_its_place(error, kind):
    """Even SystemExit, which would end this thread without a message."""

    def work(position):
        if position == 3:
            raise error
        return position

    prefetcher = Prefetcher(work, following, threads=2, ahead=4)
    assert [prefetcher.get(position) for position in range(3)] == [0, 1, 2]
    with pytest.raises(kind, match="7") as raised:
        prefetcher.get(3)
    assert error in (raised.value, raised.value.__cause__)
    assert prefetcher.get(4) == 4
    prefetcher.close()  # the traceback keeps a reference to it


def test_closing_does_not_wait_for_a_read_that_does_not_end(monkeypatch):
    monkeypatch.setattr(prefetch, "END_WAIT", 0.1)
    stuck = threading.Event()
    prefetcher = Prefetcher(lambda position: position == 2 and stuck.wait(30), following, threads=2, ahead=4)
    prefetcher.get(0)
    start = time.monotonic()
    assert not prefetcher.close() and not prefetcher.close()  # the files must stay open
    assert time.monotonic() < start + 5
    stuck.set()


def test_an_error_does_not_keep_the_threads_alive():
    """There is no reference cycle: the threads end with the last reference, without a garbage collection."""

    def work(position):
        raise ValueError("bad")

    prefetcher = Prefetcher(work, following, threads=1, ahead=1)
    gc.disable()
    try:
        with pytest.raises(ValueError):
            prefetcher.get(0)
        kept = weakref.ref(prefetcher)
        del prefetcher
        assert kept() is None
    finally:
        gc.enable()


def test_threads_work_in_parallel():
    """Four threads must be at the barrier at the same time."""
    barrier = threading.Barrier(4, timeout=5)

    def meet(position):
        barrier.wait()
        return position

    prefetcher = Prefetcher(meet, following, threads=4, ahead=8)
    assert [prefetcher.get(position) for position in range(4)] == [0, 1, 2, 3]
    barrier.abort()


def test_closing_wakes_a_thread_that_waits_for_work_that_has_not_begun():
    release = threading.Event()
    prefetcher = Prefetcher(lambda position: release.wait(30), following, threads=1, ahead=1)
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(prefetcher.get, position) for position in (0, 10)]
        assert happens(lambda: prefetcher._calls.qsize() == 3)  # one call is running
        closing = threading.Thread(target=prefetcher.close)
        closing.start()
        try:
            wait(waiting, timeout=5, return_when=FIRST_COMPLETED)
            assert any(result.done() for result in waiting)
        finally:
            release.set()
            closing.join()


DELETED = """
import time
from partial_fc.data.prefetch import Prefetcher

def work(position):
    print("begun", flush=True)
    time.sleep(0.3)
    print("ended", flush=True)

Prefetcher(work, lambda position: position + 1, threads=2, ahead=20).get(0)
"""


def test_the_end_of_python_waits_for_current_work_also_of_a_deleted_one():
    """Threads that are stopped inside OpenCV abort the process."""
    output = subprocess.run([sys.executable, "-c", DELETED], cwd=ROOT, capture_output=True, text=True).stdout
    assert 2 <= output.count("begun") == output.count("ended") < 20
