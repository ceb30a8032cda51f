"""The signals that ask a rank to stop."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_POLL = 0.05  # seconds; mpirun kills a second after SIGTERM, and a rank must have reported by then


def block_signals() -> None:
    """Blocks the stop signals in this process, so that only the watchdog receives them.

    Call this before any library starts a thread, as NumPy does when it is imported: threads inherit the signal mask.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def release_signals() -> None:
    """Unblocks the stop signals, which then end this process."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def repeat_lost_interrupts() -> None:
    """Repeats Ctrl-C if it arrives in a destructor or callback, where Python discards the KeyboardInterrupt."""
    report = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is KeyboardInterrupt:  # delayed, because Python discards it in this hook, too
            threading.Timer(_POLL, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            report(unraisable)

    sys.unraisablehook = hook


def wait_for_signal(timeout: float) -> int | None:
    """Waits for a stop signal; returns its number, or None if none arrives within ``timeout`` seconds.

    The signals must be blocked in all threads, and only one thread may call this.
    """
    end = time.monotonic() + timeout
    # Not signal.sigtimedwait: after SIGSTOP and SIGCONT it returns uninitialized memory (Python 3.10 to 3.13), which
    # may look like a stop signal.
    while not (arrived := signal.sigpending().intersection(SIGNALS)):
        left = end - time.monotonic()
        if left <= 0:
            return None
        time.sleep(min(left, _POLL))
    return signal.sigwait(arrived)
