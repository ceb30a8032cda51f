"""The signals that ask a rank to stop."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_POLL = 0.05  # seconds; mpirun kills a rank a second after SIGTERM, in which it also has to report why it ends


def block_signals() -> None:
    """Leaves the signals that ask this process to stop to the watchdog.

    Threads inherit the mask, so call this before any library starts one: NumPy does so when it is imported.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def release_signals() -> None:
    """Lets these signals end this process again."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def repeat_lost_interrupts() -> None:
    """Interrupts this process again if Ctrl-C arrived in a destructor or callback, where Python drops its exception."""
    report = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is KeyboardInterrupt:  # later, as it would be dropped in this hook, too
            threading.Timer(_POLL, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            report(unraisable)

    sys.unraisablehook = hook


def wait_for_signal(timeout: float) -> int | None:
    """Waits for one of these signals; returns its number, or None if none arrives within ``timeout`` seconds.

    They must be blocked in all threads, and only one thread may call this.
    """
    end = time.monotonic() + timeout
    # Not signal.sigtimedwait: after SIGSTOP and SIGCONT it returns memory that nothing has written (Python 3.10 to
    # 3.13), and the number in it may be that of a stop request.
    while not (arrived := signal.sigpending().intersection(SIGNALS)):
        left = end - time.monotonic()
        if left <= 0:
            return None
        time.sleep(min(left, _POLL))
    return signal.sigwait(arrived)
