"""Computes the next results ahead of time in threads."""

import atexit
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, Generic, TypeVar
from weakref import WeakSet, finalize

Position = TypeVar("Position")
Result = TypeVar("Result")

END_WAIT = 5.0  # seconds to wait for current reads, as a read from a dead network file system never ends

_open: "WeakSet[Prefetcher]" = WeakSet()
_threads: WeakSet[Thread] = WeakSet()  # includes threads of deleted prefetchers, which finish their current work


class Prefetcher(Generic[Position, Result]):
    """Runs `work(position)` in threads for the next positions: `position`, `successor(position)`, and so on.

    The threads have no reference to this object, and end when it is deleted. They are daemons, so that the process can
    exit even if some work never ends.

    Args:
        work: computes a result; must release the interpreter's lock most of the time, as OpenCV, NumPy and file reads
            do. `get` raises its exceptions.
        successor: returns the position after a position.
        threads: number of threads.
        ahead: number of results that are finished or in progress; bounds the memory.
    """

    def __init__(
        self, work: Callable[[Position], Result], successor: Callable[[Position], Position], threads: int, ahead: int
    ):
        self._successor, self._ahead = successor, ahead
        self._closed = False
        self._queue: deque[tuple[Position, Future]] = deque()
        self._calls: SimpleQueue[tuple[Any, Future] | None] = SimpleQueue()
        arguments = work, self._calls
        self._threads = [Thread(target=_run, args=arguments, name="reader", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()
        self._end_threads = finalize(self, _end, self._calls, threads)
        _open.add(self)
        _threads.update(self._threads)

    def get(self, position: Position) -> Result:
        """Returns the result at `position`; it is computed ahead if this is the successor of the last position.

        Raises:
            ValueError: the object is closed.
        """
        if self._closed:
            raise ValueError("the reader has been closed")
        if self._queue and self._queue[0][0] != position:
            self._drop()
        self._fill(position)
        _, result = self._queue.popleft()
        self._fill(self._successor(position))
        error = result.exception()
        try:
            if error is None:
                return result.result()
            if isinstance(error, Exception):
                raise error
            # A SystemExit of the work would end this thread without a message.
            raise RuntimeError(f"a reader thread ended with {error!r}") from error
        finally:
            del error, result  # the error's traceback refers to this frame, which would be a reference cycle

    def _fill(self, position: Position) -> None:
        """Queues work until `ahead` positions are queued, beginning with `position` if the queue is empty."""
        while len(self._queue) < self._ahead:
            call = self._successor(self._queue[-1][0]) if self._queue else position, Future[Result]()
            self._queue.append(call)
            self._calls.put(call)

    def _drop(self) -> None:
        for _, result in self._queue:
            result.cancel()
        self._queue.clear()

    def close(self) -> bool:
        """Ends the threads; waits at most 5 s for their current work. A second call does not wait.

        Returns:
            Whether all threads have ended. If not, the files that they read must stay open.
        """
        seconds = 0.0 if self._closed else END_WAIT
        self._closed = True
        self._drop()
        self._end_threads()
        return _join(self._threads, seconds)


def _run(work: Callable[[Any], Any], calls: "SimpleQueue[tuple[Any, Future] | None]") -> None:
    while (call := calls.get()) is not None:
        position, result = call
        if result.set_running_or_notify_cancel():
            try:
                result.set_result(work(position))
            except BaseException as error:  # including SystemExit, which `get` reports
                result.set_exception(error)
        del call, position, result  # the error's traceback refers to this frame


def _end(calls: SimpleQueue, threads: int) -> None:
    with suppress(Empty):
        while call := calls.get_nowait():
            call[1].cancel()  # a thread may be waiting for the result
    for _ in range(threads):
        calls.put(None)


def _join(threads: Iterable[Thread], seconds: float) -> bool:
    """Waits for threads to end; returns whether all have."""
    threads, deadline = list(threads), monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))
    return not any(thread.is_alive() for thread in threads)


@atexit.register
def _end_all() -> None:
    """Ends the threads at exit: Python would stop daemon threads inside OpenCV, which aborts the process."""
    for prefetcher in list(_open):
        prefetcher._end_threads()
    _join(_threads, END_WAIT)
