"""What one rank has read: counters, and the bad items that it has skipped."""

import logging
import threading
from collections.abc import Callable
from operator import add
from typing import NamedTuple, TypeVar

Result = TypeVar("Result")


class ReadCounters(NamedTuple):
    """Totals over all threads and processes."""

    images: int = 0  # number of items read
    bytes: int = 0  # bytes of encoded images, or of the arrays of other items
    read_seconds: float = 0.0  # time spent reading files
    busy_seconds: float = 0.0  # time spent reading, decoding and augmenting
    cpu_seconds: float = 0.0  # processor time of worker processes
    disk_bytes: int = 0  # bytes that worker processes have read from disk; 0 if the system does not count them


class ReadLog:
    """Counts what a rank reads, and skips bad items up to a limit. Thread-safe.

    Args:
        may_skip: number of different bad items that may be skipped before the next one is an error. Items are counted
            when they are read, ahead of the training and in several threads, so the error can name any of several bad
            items that are close together.

    Attributes:
        counters: ReadCounters so far.
        bad: position -> error message of each skipped item.
        quiet: do not log bad items, because another process does.

    Raises:
        ValueError: ``may_skip`` is negative.
    """

    def __init__(self, may_skip: int = 0):
        if may_skip < 0:
            raise ValueError(f"skip_bad_images must be at least 0, got {may_skip}")
        self._may_skip = may_skip
        self.counters, self.quiet = ReadCounters(), False
        self.bad: dict[int, str] = {}
        self._lock = threading.Lock()

    def count(self, read: ReadCounters) -> None:
        """Adds what was read."""
        with self._lock:
            self.counters = ReadCounters._make(map(add, self.counters, read))

    def skip(self, position: int, error: ValueError | str) -> None:
        """Counts and logs a bad item, once. Raises ValueError if no more are allowed."""
        with self._lock:
            if position in self.bad:
                return
            count, allowed = len(self.bad), self._may_skip
            if count < allowed:
                self.bad[position] = str(error)
                if not self.quiet:
                    logging.warning("skipped, bad item %d of at most %d: %s", count + 1, allowed, error)
                return
        advice = "; or skip it with skip_bad_images=1 or more"
        if allowed:
            advice = f" (skip_bad_images={allowed}, {allowed} were skipped before)"
        raise ValueError(f"{error}{advice}") from None

    def first_good(self, position: int, read: Callable[[int], Result], after: Callable[[int], int]) -> Result:
        """Returns ``read(position)``, or reads the next good item if this one is bad and may be skipped.

        Args:
            position: of the item.
            read: raises ValueError, which names the item, if it is bad.
            after: returns the next position; for the last position, the first.

        Raises:
            ValueError: no more items may be skipped, or there is no good item.
        """
        first = position
        while True:
            try:
                return read(position)
            except ValueError as error:
                self.skip(position, error)
                position = after(position)
                if position == first:
                    raise ValueError(f"{error}; no other item can be used either") from None
