"""The signals that ask a rank to stop."""

from __future__ import annotations

import signal
import time

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


def block_signals() -> None:
    """Leaves the signals that ask this process to stop to the watchdog.

    Threads inherit the mask, so call this before any library starts one: NumPy does so when it is imported.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def release_signals() -> None:
    """Lets these signals end this process again."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def wait_for_signal(timeout: float) -> int | None:
    """Waits ``timeout`` seconds; returns the number of one of these signals that has arrived by then, or None.

    They must be blocked in all threads, and only one thread may call this.
    """
    time.sleep(timeout)
    # Not signal.sigtimedwait: after SIGSTOP and SIGCONT it returns memory that nothing has written (Python 3.10 to
    # 3.13), and the number in it may be that of a stop request.
    arrived = signal.sigpending().intersection(SIGNALS)
    return signal.sigwait(arrived) if arrived else None
