"""The one place that prints why a job ends."""

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from partial_fc.utils.text import say

from .errors import FAILED
from .rank_status import RankStatusStore

Result = TypeVar("Result")

STORE_TIMEOUT = 2.0  # seconds for the rank status store, whose disk may be lost together with a host


class ErrorReporter:
    """Prints why the job ends, once per job: the first thread of the first rank that asks.

    A thread that has called report() also ends the process. Until then it keeps the other thread from doing so.
    """

    def __init__(self, rank_status: RankStatusStore):
        self.closed = False  # True once the main thread ends the process by itself; nothing more is printed
        self._rank_status = rank_status
        self._lock = threading.RLock()  # acquired by the first report(), never released

    def report(self, text: str, code: int = FAILED, timeout: float = -1) -> None:
        """Prints a message to standard error, unless the end of the job has been reported already.

        ``code`` is the exit code of this process if it is the one that reports; ``timeout`` the seconds to wait while
        another thread of this process reports, -1 until that thread ends it.
        """
        self._lock.acquire(timeout=timeout)
        if self.closed or not run_within(STORE_TIMEOUT, lambda: self._rank_status.claim_error_report(code), True):
            return
        with suppress(OSError):  # the reader may be gone
            say(text, sys.stderr)

    def exit_code(self, own: int) -> int:
        """Returns the exit code of the rank that reports why the job ends, or ``own`` if none does."""
        return run_within(STORE_TIMEOUT, self._rank_status.reported_code, None) or own


def run_within(seconds: float, function: Callable[[], Result], otherwise: Result) -> Result:
    """Returns the result of a function, or ``otherwise`` if it takes longer than ``seconds``."""
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else otherwise
