"""Curves for TensorBoard, by mxboard or torch.utils.tensorboard; a full disk ends them, not the training."""

from __future__ import annotations

import functools
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from partial_fc.utils.text import printable

CLOSING = 30  # seconds


class ScalarWriter(Protocol):
    """A writer of TensorBoard events: mxboard's SummaryWriter, or PyTorch's."""

    def add_scalar(self, tag: str, value: float, global_step: int, /) -> None:
        """Writes one value of a curve."""

    def close(self) -> None:
        """Flushes and closes the files."""


class Curves:
    """Passes values to a writer until it fails.

    Both libraries write in a thread of theirs through a bounded queue. When a write has failed their thread ends, and a
    call may wait for it forever: all calls are made by a thread of this class, which the training does not wait for.

    Args:
        folder: of the files.
        open_writer: opens the writer in a folder, which it creates.
    """

    def __init__(self, folder: str, open_writer: Callable[[str], ScalarWriter]):
        self._folder, self._failed, self._hook = folder, False, threading.excepthook
        self._failing = threading.Lock()
        self._writer: ScalarWriter | None = None
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._caller = threading.Thread(target=self._make_calls, daemon=True)
        running = set(threading.enumerate())
        threading.excepthook = self._thread_failed
        self._attempt(lambda: setattr(self, "_writer", open_writer(folder)))
        # Both libraries have classes of their own for it. Another thread that starts meanwhile may end without harm.
        started = set(threading.enumerate()) - running
        self._threads = {thread for thread in started if type(thread) is not threading.Thread}
        self._caller.start()

    def add_scalar(self, tag: str, value: float, num_update: int) -> None:
        """Writes one value of a curve."""
        if self._writer is not None:
            self._calls.put(functools.partial(self._writer.add_scalar, tag, value, num_update))

    def close(self) -> None:
        """Closes the files."""
        if self._writer is not None:
            self._calls.put(self._writer.close)
        self._calls.put(None)
        end = time.monotonic() + CLOSING
        while self._caller.is_alive() and not self._failed and time.monotonic() < end:
            self._caller.join(0.1)
        threading.excepthook = self._hook

    def _make_calls(self) -> None:
        while (call := self._calls.get()) is not None:
            if not self._failed:
                self._attempt(call)

    def _attempt(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except Exception as error:  # TensorBoard has classes of its own
            self._fail(error)

    def _thread_failed(self, failure: threading.ExceptHookArgs) -> None:
        if failure.thread in self._threads and failure.exc_value is not None:
            self._fail(failure.exc_value)
        else:
            self._hook(failure)

    def _fail(self, error: BaseException) -> None:
        with self._failing:  # the thread of the library and that of the calls may fail at once
            if not self._failed:
                warn_unwritable(self._folder, error)
            self._failed = True  # close() no longer waits


def warn_unwritable(path: str, error: BaseException) -> None:
    """Reports on standard error that the training goes on without this file or folder."""
    text = (
        f"warning: cannot write {path} ({getattr(error, 'strerror', None) or error}): the training goes on without it"
    )
    print(printable(text), file=sys.stderr, flush=True)
