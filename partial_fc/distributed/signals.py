"""The signals that ask a rank to stop."""

from __future__ import annotations

import signal

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


def block_signals() -> None:
    """Leaves the signals that ask this process to stop to the watchdog.

    Threads inherit the mask, so call this before any library starts one: NumPy does so when it is imported.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def release_signals() -> None:
    """Lets these signals end this process again."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
