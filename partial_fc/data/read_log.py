"""What one rank has read: counters, and the bad items that were skipped."""

import logging
import threading
from collections.abc import Callable
from operator import add
from typing import NamedTuple, TypeVar

Result = TypeVar("Result")


class ReadCounters(NamedTuple):
    """Totals of reading, over all threads and processes."""

    images: int = 0  # number of items read
    bytes: int = 0  # bytes of encoded images, or of the arrays of other items
    read_seconds: float = 0.0  # time of reading the file
    busy_seconds: float = 0.0  # time of reading, decoding and augmentation
    cpu_seconds: float = 0.0  # time of the processor in worker processes
    disk_bytes: int = 0  # bytes that worker processes read from the disk; 0 if the system does not count them

    def plus(self, other: "ReadCounters") -> "ReadCounters":
        """Returns the sum."""
        return ReadCounters._make(map(add, self, other))


class ReadLog:
    """Counters of a rank, and its bad items, up to a limit. Thread-safe.

    Args:
        may_skip: number of different bad items to replace by the following item before one is an error. They are
            counted when they are read, which is ahead of the training and in several threads: if more are close
            together, the error may name any of them.

    Attributes:
        counters: ReadCounters so far.
        bad: position -> what is wrong, of the items that were skipped.
        quiet: bad items are not logged, as another process does it.

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
            self.counters = self.counters.plus(read)

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
        """Returns ``read(position)``, or that of the next good item if bad ones may be skipped.

        Args:
            position: of the item.
            read: raises ValueError, which names the item, if it is bad.
            after: returns the position after one, the first one after the last.

        Raises:
            ValueError: no more may be skipped, or there is no good item.
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
