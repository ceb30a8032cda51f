"""An ordered map over many tasks with worker processes, in bounded memory."""

import multiprocessing.util
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from itertools import chain, islice
from multiprocessing import get_context, parent_process
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")
Item = TypeVar("Item")

AHEAD = 3  # tasks in flight per worker: enough to keep it busy, and few enough to bound the memory


def ordered_map(
    function: Callable[[Task], Result], tasks: Iterable[Task], workers: int
) -> Iterator[tuple[Task, Result]]:
    """Yields (task, function(task)) in the order of the tasks, computed by ``workers`` processes.

    The tasks are consumed lazily. With one worker or one task, no process is started. Processes are spawned, because
    the caller may have threads, so the function, its tasks and results must be picklable. Exceptions of the function
    are raised here; a worker that dies raises OSError.
    """
    tasks = iter(tasks)
    first = list(islice(tasks, 2))
    all_tasks = chain(first, tasks)
    if workers <= 1 or len(first) < 2:
        for task in all_tasks:
            yield task, function(task)
        return
    # no_interrupt: the executor starts multiprocessing's resource tracker, which would unblock SIGTERM in this process.
    with no_interrupt(), safe_path():
        executor = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=start_worker)
    waiting: deque[tuple[Task, Future]] = deque()
    try:
        for task in all_tasks:
            with no_interrupt(), safe_path():
                waiting.append((task, executor.submit(function, task)))
            if len(waiting) >= AHEAD * workers:
                task, future = waiting.popleft()
                yield task, future.result()
        for task, future in waiting:
            yield task, future.result()
    except BrokenProcessPool:
        raise OSError(
            "a worker process exited without reporting an error (killed or out of memory?): use fewer --workers"
        ) from None
    finally:
        executor.shutdown(cancel_futures=True)


@contextmanager
def environment_variable(name: str, value: str) -> Iterator[None]:
    """Sets an environment variable in the block, for processes that are started there."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def safe_path() -> AbstractContextManager[None]:
    """Keeps processes that are started in the block from importing modules of the current folder.

    multiprocessing starts them by ``python -c``, which searches the current folder first: a ``signal.py`` in a
    downloaded set would run.
    """
    return environment_variable("PYTHONSAFEPATH", "1")  # for Python 3.11 and newer


if sys.version_info < (3, 11):
    _flags = multiprocessing.util._args_from_interpreter_flags  # type: ignore[attr-defined]
    # Python 3.10 needs -I. It hides no module from a worker, because multiprocessing passes on this process's sys.path.
    multiprocessing.util._args_from_interpreter_flags = lambda: ["-I", *_flags()]  # type: ignore[attr-defined]


def start_worker() -> None:
    """Initializes a worker process."""
    import cv2  # slow to import

    cv2.setNumThreads(1)  # OpenCV's threads would compete for the cores that the workers share
    threading.Thread(target=end_with_parent, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # blocked by no_interrupt, but it must end a worker


def end_with_parent() -> None:
    """Ends this process when its parent has ended (kill -9, out of memory). Otherwise it would run forever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def no_interrupt() -> Iterator[None]:
    """Defers SIGINT and SIGTERM until the end of the block. Processes that are started in it ignore Ctrl-C."""
    numbers = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    received: list[int] = []
    handlers = {}
    # Another thread may receive the signal, and its handler would still run in the main thread.
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.signal(number, lambda late, frame: received.append(late)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for late in received[:1]:
            os.kill(os.getpid(), late)  # to the whole process, as another thread may be waiting for the signal


def in_chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yields lists of `size` items; the last one may be shorter."""
    items = iter(items)
    while chunk := list(islice(items, size)):
        yield chunk
