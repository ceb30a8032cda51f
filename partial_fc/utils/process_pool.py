"""A map over many tasks with processes of its own: ordered, bounded, and ending with a sentence when one dies."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain, islice
from multiprocessing import get_context, parent_process
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")
Item = TypeVar("Item")

AHEAD = 3  # tasks in flight for each worker: enough to keep it busy, few enough to bound the memory


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def ordered_map(
    function: Callable[[Task], Result], tasks: Iterable[Task], workers: int
) -> Iterator[tuple[Task, Result]]:
    """(task, function(task)) in the order of the tasks, from `workers` processes; tasks are drawn as room comes.

    With one worker, or one task, no process is started. An exception of `function` is raised here. Raises OSError if
    a process dies. `function` and tasks must be picklable: processes are spawned, as the caller may have threads.
    """
    tasks = iter(tasks)
    first = list(islice(tasks, 2))
    everything = chain(first, tasks)
    if workers <= 1 or len(first) < 2:
        for task in everything:
            yield task, function(task)
        return
    executor = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=start_worker)
    waiting: deque[tuple[Task, Future]] = deque()
    try:
        for task in everything:
            with no_interrupt():
                waiting.append((task, executor.submit(function, task)))
            if len(waiting) >= AHEAD * workers:
                yield next_result(waiting)
        while waiting:
            yield next_result(waiting)
    except BrokenProcessPool:
        raise OSError(
            "a worker process died without a word (killed, or out of memory?): run again with fewer --workers"
        ) from None
    finally:
        executor.shutdown(cancel_futures=True)


def next_result(waiting: deque[tuple[Task, Future]]) -> tuple[Task, Result]:
    """The oldest task with its result."""
    task, future = waiting.popleft()
    return task, future.result()


def start_worker() -> None:
    """What a worker does first: OpenCV's own threads would fight for the cores that the workers share."""
    import cv2  # here, as command lines import this module only for usable_cores

    cv2.setNumThreads(1)
    threading.Thread(target=end_with_parent, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # see no_interrupt: it must end a worker


def end_with_parent() -> None:
    """End this process when its parent is gone (kill -9, out of memory), which else it would outlive for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def no_interrupt() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back. Processes started meanwhile leave Ctrl-C to the caller, which ends them."""
    numbers = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    came: list[int] = []
    handlers = {}
    # A signal may come to another thread of this process, and would then be dealt with here all the same.
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.signal(number, lambda late, frame: came.append(late)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for late in came[:1]:
            signal.raise_signal(late)


def in_chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of `size` items, the last perhaps shorter."""
    items = iter(items)
    while True:
        chunk = list(islice(items, size))
        if not chunk:
            return
        yield chunk
