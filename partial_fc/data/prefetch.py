"""Computes the next results ahead of time, in threads."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Position = TypeVar("Position")
Result = TypeVar("Result")


class Prefetcher(Generic[Position, Result]):
    """Runs `work(position)` in threads for the next positions: `position`, `successor(position)`, and so on.

    The object has no reference to its owner; its threads end when it is deleted.

    Args:
        work: computes a result; must release the interpreter's lock most of the time, as OpenCV, NumPy and file reads
            do. Its exceptions are raised by the `get` of their position.
        successor: returns the position after a position.
        threads: number of threads.
        ahead: number of results that are computed or being computed; bounds the memory.
    """

    def __init__(
        self, work: Callable[[Position], Result], successor: Callable[[Position], Position], threads: int, ahead: int
    ):
        self._work, self._successor, self._ahead = work, successor, ahead
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="reader")
        self._closed = False
        self._queue: deque[tuple[Position, Future]] = deque()

    def get(self, position: Position) -> Result:
        """Returns the result at `position`, without waiting if it is the successor of the last position and is ready.

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
            raise RuntimeError(f"a reader thread ended with {error!r}") from error  # must not end this thread silently
        finally:
            del error, result  # their traceback would keep a reference to this frame and its owner

    def _fill(self, position: Position) -> None:
        """Starts work until `ahead` positions are queued, beginning with `position` if none is."""
        while len(self._queue) < self._ahead:
            upcoming = self._successor(self._queue[-1][0]) if self._queue else position
            self._queue.append((upcoming, self._pool.submit(self._work, upcoming)))

    def _drop(self) -> None:
        for _, result in self._queue:
            result.cancel()
        self._queue.clear()

    def close(self) -> None:
        """Ends the threads after their current work; a second call has no effect."""
        self._closed = True
        self._drop()
        self._pool.shutdown()
