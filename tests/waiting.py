"""Waits that end, also where a test hangs."""

import time

# Seconds after which what a test only prepares hangs: a stalled machine was seen to delay tests by 50 s.
LIMIT = 60


def happens(condition, seconds=LIMIT):
    """Waits until a condition holds; False if it does not within these seconds."""
    end = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return bool(holds)
