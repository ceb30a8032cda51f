"""Doing ahead of time, in threads, what will be asked for next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Place = TypeVar("Place")
Result = TypeVar("Result")


class Prefetcher(Generic[Place, Result]):
    """Runs `work(place)` on `threads` threads for the places to come: `place`, `successor(place)`, and so on.

    Python threads do: what takes time in `work` must release the interpreter's lock, as OpenCV, NumPy and file reads
    do. `ahead` results are kept or in the making, so memory is bounded. What `work` raises, the `get` of that place
    raises. It holds no reference to its owner: when it is dropped, its threads end.
    """

    def __init__(self, work: Callable[[Place], Result], successor: Callable[[Place], Place], threads: int, ahead: int):
        self._work, self._successor, self._ahead = work, successor, ahead
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="reader")
        self._closed = False
        self._queue: deque[tuple[Place, Future]] = deque()

    def get(self, place: Place) -> Result:
        """The result at `place`; at once, if that is the place after the last one asked for and it is ready.

        Raises ValueError after `close`.
        """
        if self._closed:
            raise ValueError("the reader has been closed")
        if self._queue and self._queue[0][0] != place:
            self._drop()
        self._fill(place)
        _, result = self._queue.popleft()
        self._fill(self._successor(place))
        error = result.exception()
        try:
            if error is None:
                return result.result()
            if isinstance(error, Exception):
                raise error
            raise RuntimeError(f"a reading thread was ended by {error!r}") from error  # not to end this one silently
        finally:
            del error, result  # or their traceback would keep this frame, and its owner, alive

    def _fill(self, place: Place) -> None:
        """Start work until `ahead` places are on their way, from `place` if there are none yet."""
        while len(self._queue) < self._ahead:
            upcoming = self._successor(self._queue[-1][0]) if self._queue else place
            self._queue.append((upcoming, self._pool.submit(self._work, upcoming)))

    def _drop(self) -> None:
        for _, result in self._queue:
            result.cancel()
        self._queue.clear()

    def close(self) -> None:
        """End the threads, after what they are doing now; a second call does nothing."""
        self._closed = True
        self._drop()
        self._pool.shutdown()
