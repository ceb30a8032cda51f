"""Waits with a time limit."""

import time

# Default limit in seconds: a stalled machine was seen to delay tests by 50 s.
LIMIT = 60


def happens(condition, seconds=LIMIT):
    """Waits until a condition holds; returns False if it does not within these seconds."""
    end = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return bool(holds)
