"""Passes the figures of a training to all of its trackers; one that fails or hangs does not hold up the training."""

import itertools
import queue
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
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
# For each part between the slashes of a curve's name. mxboard replaces these characters, MLflow refuses them. MLflow
# also refuses names that are not plain paths or exceed 250 characters.
ILLEGAL, LONGEST = re.compile(r"[^\w.-]|^\.{0,2}$"), 100


class Trackers:
    """The trackers of a training on rank 0; on other ranks it is empty."""

    def __init__(self, members: Mapping[str, Tracker]):
        self._members = [_Member(name, tracker) for name, tracker in members.items()]
        self._parts: dict[str, str] = {}  # part of a curve's name -> legal part
        self._hook: Callable[[threading.ExceptHookArgs], Any] | None = None  # threading.excepthook before `begin`

    def begin(
        self,
        folder: str,
        settings: Mapping[str, Any],
        first_update: int = 0,
        changes: Mapping[str, tuple[Any, Any]] = {},  # noqa: B006  is not changed
    ) -> None:
        """Starts the runs, or continues the runs of a training that resumes; passes on what was logged so far.

        Args:
            folder, settings, first_update: see TrackedRun.
            changes: what a resumed training has changed, see changes_since.

        Raises:
            OSError: The identifier of the run cannot be read or written.
            ValueError: The identifier is invalid.
        """
        path = join(folder, RUN_ID)
        if not exists(path):
            replace_file(path, [uuid.uuid4().hex[:8].encode()])
        if not IDENTIFIER.fullmatch(run_id := read_regular(path, 100).strip()):
            raise ValueError(f"{path} holds no identifier of a run: remove it")
        changed = {
            f"{name} from update {first_update}": f"{before}, now {now}" for name, (before, now) in changes.items()
        }
        self._hook, threading.excepthook = threading.excepthook, self._thread_failed
        for member in self._members:
            member.begin(TrackedRun(folder, run_id.decode(), settings, first_update, changed))

    def log(self, values: Mapping[str, float], num_update: int) -> None:
        """Logs the values of curves by name, after an update, under names that all trackers accept."""
        legal = {"/".join(map(self._legal, name.split("/"))): value for name, value in values.items()}
        for member in self._members:
            member.calls.put(("log", legal, num_update))

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
        """Closes all trackers at once; waits for at most 30 seconds, and reports those that take longer."""
        if self._hook is None:
            return
        for member in self._members:
            member.calls.put(("close",))
            member.calls.put(None)
        end = time.monotonic() + CLOSING
        for member in self._members:
            member.wait_until(end)
        threading.excepthook = self._hook

    def _thread_failed(self, failure: threading.ExceptHookArgs) -> None:
        library = type(failure.thread).__module__.partition(".")[0]
        owners = [member for member in self._members if library in member.threads_of]
        if owners and failure.exc_value:
            owners[0].fail(failure.exc_value)
        elif self._hook:
            self._hook(failure)


class _Member:
    """Calls one tracker from a thread of its own, so that the training never waits for it.

    A call may block forever: the writers of TensorBoard events pass values to a background thread through a bounded
    queue. A failed write ends that thread, and then nobody empties the queue.
    """

    def __init__(self, name: str, tracker: Tracker):
        self.calls: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()  # method, arguments; None: the end
        self.threads_of = getattr(tracker, "threads_of", ())
        self._name, self._tracker = name, tracker
        self._folder, self._failed, self._refusals = "", False, 0
        self._failing = threading.Lock()

    def begin(self, run: TrackedRun) -> None:
        self._folder = run.folder
        self._thread = threading.Thread(target=self._make_calls, args=(run,), daemon=True)
        self._thread.start()

    def _make_calls(self, run: TrackedRun) -> None:
        try:
            self._tracker.begin(run)
        except Exception as error:  # libraries have error classes of their own
            self.fail(error)
        while (call := self.calls.get()) is not None:
            if self._failed:
                continue
            method, *arguments = call
            try:
                getattr(self._tracker, method)(*arguments)
            except Exception as error:
                if self.threads_of and isinstance(error, OSError):  # its thread has ended, and the next call may block
                    self.fail(error)
                elif not self._refusals:  # later refusals may have the same cause
                    warn_without(f"values of {self._folder} to {self._name}", error)
                self._refusals += 1

    def fail(self, error: BaseException) -> None:
        """Reports the first error that ends the tracker; no more calls are made."""
        with self._failing:  # a thread of the library may fail at the same time as a call
            if not self._failed:
                warn_without(f"the curves of {self._folder} to {self._name}", error)
            self._failed = True

    def wait_until(self, end: float) -> None:
        while self._thread.is_alive() and not self._failed and time.monotonic() < end:
            self._thread.join(0.1)
        if self._thread.is_alive():
            self.fail(TimeoutError(f"it has not closed after {CLOSING} seconds"))
        if self._refusals > 1 and not self._failed:
            say(f"warning: {self._name} has refused values {self._refusals:,} times", sys.stderr)


def warn_without(what: str, error: BaseException) -> None:
    """Warns on standard error that the training continues without a file or a tracker."""
    reason = " ".join(str(getattr(error, "strerror", None) or error).split())
    text = with_user_place(f"warning: cannot write {what} ({reason}): the training goes on without it", error)
    say(text, sys.stderr)
