"""Measuring a reader: its counters at one moment, and batches that it has not decoded in advance."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from .facts import Tally, disk_bytes, idle_seconds

SECONDS = 8.0  # default length of a phase
# Steps of a phase at least, and before it: the first steps allocate memory and choose algorithms.
STEPS, WARM_UP = 20, 10
# Batches, besides one per decoding thread, that use up those decoded before the measurement.
READ_AHEAD = 4


def endless(data) -> Iterator[Any]:
    """Yields the batches of an iterator, which is reset at each end."""
    while True:
        try:
            yield data.next()
        except StopIteration:
            data.reset()


def read_past_buffers(data, report_progress: Callable[[], None]) -> Iterator[Any]:
    """Yields batches of a reader after skipping those decoded in advance, with which a slow reader would seem fast.

    Args:
        data: The reader, with its number of decoding ``threads``.
        report_progress: Called after each skipped batch.
    """
    batches = endless(data)
    for _ in range(data.threads + READ_AHEAD):
        next(batches)
        report_progress()
    yield from batches


def take_tally(data, images: int, waited: float) -> Tally:
    """Returns the Tally of this process now.

    Args:
        data: the reader, with its ``counters``.
        images: number of images taken so far.
        waited: seconds waited for data so far.
    """
    counters = data.counters
    return Tally(
        seconds=time.perf_counter(),
        images=images,
        waited=waited,
        cpu_seconds=time.process_time(),
        bytes=counters.bytes,
        read_seconds=counters.read_seconds,
        busy_seconds=counters.busy_seconds,
        disk_bytes=disk_bytes(),
        idle_seconds=idle_seconds(),
    )
