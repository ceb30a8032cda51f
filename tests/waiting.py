"""Waits that end, also where a test hangs."""

import time

# Seconds after which what has not happened hangs. A virtual machine's kernel was seen to run nothing for 30 s.
LIMIT = 120


def happens(condition, seconds=LIMIT):
    """Waits until a condition holds; False if it does not within these seconds."""
    end = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return bool(holds)
