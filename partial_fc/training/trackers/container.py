"""Passes the figures of a training to all of its trackers; one that fails or hangs does not hold up the training."""

import itertools
import queue
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from os.path import exists, join
from typing import Any

from partial_fc.distributed.errors import with_user_place
from partial_fc.utils.atomic_io import replace_file
from partial_fc.utils.regular_files import read_regular
from partial_fc.utils.text import say

from .tracker import TrackedRun, Tracker

RUN_ID = "run_id"  # file in the output folder
IDENTIFIER = re.compile(rb"[\w.-]{1,64}")
CLOSING = 30  # seconds
# Of a part of a curve's name between slashes: what mxboard replaces, or MLflow refuses, whose names may be paths, with
# 250 characters in all.
ILLEGAL, LONGEST = re.compile(r"[^\w.-]|^\.{0,2}$"), 100


class Trackers:
    """The trackers of a training on rank 0; on other ranks there are none."""

    def __init__(self, members: Mapping[str, Tracker]):
        self._members = [_Member(name, tracker) for name, tracker in members.items()]
        self._parts: dict[str, str] = {}  # of the names of curves, as given -> as passed on

    def begin(
        self,
        folder: str,
        settings: Mapping[str, Any],
        first_update: int = 0,
        changes: Mapping[str, tuple[Any, Any]] = {},  # noqa: B006  is not changed
    ) -> None:
        """Starts the runs, with what was logged so far; those of the training that ``folder`` holds go on.

        Args:
            folder, settings, first_update: see TrackedRun.
            changes: name -> what it was, and what it is from there on.

        Raises:
            OSError: the identifier of the run cannot be read or written.
            ValueError: it is none.
        """
        path = join(folder, RUN_ID)
        if not exists(path):
            replace_file(path, [uuid.uuid4().hex[:8].encode()])
        if not IDENTIFIER.fullmatch(run_id := read_regular(path, 100).strip()):
            raise ValueError(f"{path} holds no identifier of a run: remove it")
        changed = {
            f"{name} from update {first_update}": f"{before}, now {now}" for name, (before, now) in changes.items()
        }
        run = TrackedRun(folder, run_id.decode(), settings, first_update, changed)
        for member in self._members:
            member.begin(run)

    def log(self, values: Mapping[str, float], num_update: int) -> None:
        """Logs the values of curves, by name, after an update; each tracker gets names that all of them take."""
        legal = {"/".join(map(self._legal, name.split("/"))): value for name, value in values.items()}
        for member in self._members:
            member.log(legal, num_update)

    def _legal(self, part: str) -> str:
        if part not in self._parts:
            first = legal = ILLEGAL.sub("_", part)[:LONGEST]
            for number in itertools.count(2):
                if legal not in self._parts.values():  # two sets must not share a curve
                    break
                legal = f"{first}_{number}"
            self._parts[part] = legal
        return self._parts[part]

    def close(self) -> None:
        """Closes all of them at once; waits for 30 seconds at most, and reports those that take longer."""
        for member in self._members:
            member.begin_closing()
        end = time.monotonic() + CLOSING
        for member in reversed(self._members):  # each restores the threading.excepthook that it found
            member.wait_until(end)


class _Member:
    """Makes the calls of one tracker in a thread, which the training does not wait for; what `log` refuses is left out.

    The writers of TensorBoard events write in a thread of theirs through a bounded queue. When a write has failed that
    thread ends, and a call may wait for it forever.
    """

    def __init__(self, name: str, tracker: Tracker):
        self._name, self._tracker = name, tracker
        self._where, self._failed, self._hook = "", False, threading.excepthook
        self._refused = 0  # calls
        self._failing = threading.Lock()
        self._threads_of: Collection[str] = getattr(tracker, "threads_of", ())
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._caller: threading.Thread | None = None

    def begin(self, run: TrackedRun) -> None:
        self._where, self._hook = run.folder, threading.excepthook
        threading.excepthook = self._thread_failed
        self._caller = threading.Thread(target=self._make_calls, args=(run,), daemon=True)
        self._caller.start()

    def log(self, values: Mapping[str, float], num_update: int) -> None:
        self._calls.put(lambda: self._tracker.log(values, num_update))

    def begin_closing(self) -> None:
        self._calls.put(lambda: self._tracker.close())
        self._calls.put(None)

    def wait_until(self, end: float) -> None:
        if self._caller is None:
            return
        while self._caller.is_alive() and not self._failed and time.monotonic() < end:
            self._caller.join(0.1)
        if self._caller.is_alive():
            self._fail(TimeoutError(f"it has not closed after {CLOSING} seconds"))
        threading.excepthook = self._hook
        if self._refused > 1 and not self._failed:
            say(f"warning: {self._name} has refused values {self._refused:,} times", sys.stderr)

    def _make_calls(self, run: TrackedRun) -> None:
        try:  # the libraries have classes of errors of their own
            self._tracker.begin(run)
        except Exception as error:
            self._fail(error)
        while (call := self._calls.get()) is not None:
            if self._failed:
                continue
            try:
                call()
            except Exception as error:
                if self._threads_of and isinstance(error, OSError):  # of the ended thread; a call may wait forever
                    self._fail(error)
                elif not self._refused:  # the next refusals may have the same cause
                    warn_without(f"values to {self._name} of {self._where}", error)
                self._refused += 1

    def _thread_failed(self, failure: threading.ExceptHookArgs) -> None:
        library = type(failure.thread).__module__.partition(".")[0]
        if library in self._threads_of and failure.exc_value is not None:
            self._fail(failure.exc_value)
        else:
            self._hook(failure)

    def _fail(self, error: BaseException) -> None:
        with self._failing:  # the thread of the library and that of the calls may fail at once
            if not self._failed:
                warn_without(f"the curves of {self._name} of {self._where}", error)
            self._failed = True  # close() no longer waits


def warn_without(what: str, error: BaseException) -> None:
    """Reports on standard error that the training goes on without a file or a tracker."""
    reason = " ".join(str(getattr(error, "strerror", None) or error).split())
    text = with_user_place(f"warning: cannot write {what} ({reason}): the training goes on without it", error)
    say(text, sys.stderr)
