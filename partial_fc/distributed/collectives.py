"""Named collectives between the ranks of a job, for all frameworks.

A trainer implements Backend for its framework and passes one Collectives object to the code that communicates.
"""

import contextlib
import faulthandler
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from partial_fc.utils.user_code import described, place_in_user_code

from .consistency import differences
from .env import rank_info
from .errors import FAILED, REFUSED, USER_ERRORS, JobError, StopRequested, place_of, with_user_place
from .watchdog import State, Watchdog

Result = TypeVar("Result")


class Backend(Protocol):
    """The collectives of a framework. Calls on different ranks are matched by name.

    Attributes:
        rank: rank of this process in the job.
        size: number of ranks of the job.
        user_errors: exceptions of the framework that a user can fix, in addition to USER_ERRORS.
    """

    @property
    def user_errors(self) -> tuple[type[Exception], ...]: ...

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def gather_object(self, name: str, value: Any) -> list[Any]:
        """Returns the values of all ranks, in the order of the ranks. The value must be picklable."""

    def max(self, name: str, value: float) -> float:
        """Returns the maximum over all ranks, rounded to float32."""

    def barrier(self, name: str) -> None:
        """Blocks until all ranks have called it."""

    def abort(self, code: int) -> None:
        """Ends all ranks with this exit code if the framework can; otherwise returns."""

    def error_message(self, error: BaseException) -> str:
        """Returns the message of an error, without additions of the framework."""

    def is_connection_error(self, error: BaseException) -> bool:
        """Returns whether a collective failed because another rank exited or failed."""


class Collectives:
    """The collectives of this process, which is one rank of a job. A job of one rank does not communicate.

    Attributes:
        backend: collectives of the framework.
        watchdog: the watchdog of this rank, notified of progress; None without one.
        exit_code: exit code if an error is raised now.
        local_rank: rank of this process on its host, set by the launcher; 0 without a launcher.
        local_size: number of ranks on this host, set by the launcher; 1 without a launcher.
    """

    def __init__(self, backend: Backend):
        self.backend = backend
        _, _, self.local_rank, self.local_size = rank_info(os.environ)
        self.watchdog: Watchdog | None = None
        self.exit_code = REFUSED
        self._timeout = 0.0

    @property
    def rank(self) -> int:
        """The rank of this process in the job."""
        return self.backend.rank

    @property
    def size(self) -> int:
        """The number of ranks of the job."""
        return self.backend.size

    def gather_object(self, name: str, value: Any) -> list[Any]:
        """Returns the values of all ranks, in the order of the ranks (all-gather ``name``)."""
        if self.size == 1:
            return [value]
        with self.waiting(f"all-gather {name}"):
            return self.backend.gather_object(name, value)

    def broadcast(self, name: str, value: Any) -> Any:
        """Returns rank 0's value on all ranks and ignores the others (all-gather ``name``)."""
        return self.gather_object(name, value if self.rank == 0 else None)[0]

    def max(self, name: str, value: float) -> float:
        """Returns the maximum over all ranks, rounded to float32 (all-reduce ``name``)."""
        if self.size == 1:
            return value
        with self.waiting(f"all-reduce {name}"):
            return self.backend.max(name, value)

    def barrier(self, name: str) -> None:
        """Blocks until all ranks have called it (all-gather ``name``)."""
        if self.size > 1:
            with self.waiting(f"all-gather {name}"):
                self.backend.barrier(name)

    def assert_same_on_all_ranks(self, facts: Mapping[str, Any]) -> None:
        """Checks that ``facts``, JSON values by name, are the same on all ranks (all-gather ``agree``).

        Raises:
            JobError: a fact differs; raised on all ranks. The message names the fact and the ranks.
        """
        message = differences(self.gather_object("agree", facts))
        if message:
            raise JobError(message)

    def run_on_all_ranks(self, name: str, work: Callable[[], Result]) -> Result:
        """Runs ``work`` on every rank and returns its result, or raises the same error on all ranks.

        Collectives: all-gather of the errors, named ``status.<name>``.

        Raises:
            JobError: ``work`` failed on some rank. The message has the error and number of the lowest such rank.
        """
        results: list[Result] = []
        error_message = None
        self._mark(name)
        try:
            results.append(work())
        except (Exception, SystemExit) as error:
            place, is_refusal = place_in_user_code(error), isinstance(error, USER_ERRORS + self.backend.user_errors)
            if not (is_refusal or place or isinstance(error, RuntimeError)):  # MXNet raises RuntimeError in binding
                raise  # a bug, reported with its traceback
            error_message = described(error) if place and not is_refusal else self.backend.error_message(error)
            if not (is_refusal or place):
                error_message += f" ({place_of(error)})"
            if not isinstance(error, JobError):  # its message has the place already
                error_message = with_user_place(error_message, error)
        messages = self.gather_object(f"status.{name}", error_message)
        self._mark()
        failed = [rank for rank, message in enumerate(messages) if message]
        if failed:
            where = "" if len(failed) == len(messages) else f" (rank {failed[0]} of {len(messages)})"
            raise JobError(messages[failed[0]] + where)
        return results[0]

    def on_rank_zero(self, name: str, work: Callable[..., Result], *args: Any) -> Result | None:
        """Runs ``work(*args)`` on rank 0 only; an error there is raised on all ranks.

        Collectives: all-gather of the error, named ``status.<name>``.

        Returns:
            The result on rank 0; None on the other ranks.

        Raises:
            JobError: ``work`` failed on rank 0; raised on every rank.
        """
        return self.run_on_all_ranks(name, lambda: work(*args) if self.rank == 0 else None)

    # Progress, and the request to stop --------------------------------------------------------------

    @contextlib.contextmanager
    def watch(self, seconds: float, host_seconds: float) -> Iterator[None]:
        """Context manager that ends the job with a report if it makes no progress, see report_progress().

        Without this limit, a rank waits forever for one that hangs, under Gloo and MPI alike. Waiting for a rank that
        makes progress counts as progress.

        Args:
            seconds: limit without progress; 0 for no limit.
            host_seconds: limit without an answer from another host; 0 for no limit.
        """
        self._timeout = seconds
        if self.watchdog is not None:
            self.watchdog.timeout, self.watchdog.host_timeout = seconds, host_seconds
        self._mark()
        try:
            yield
        finally:
            self._timeout = 0.0
            if self.watchdog is None:  # otherwise the program that trained would be killed later, whatever it does then
                faulthandler.cancel_dump_traceback_later()

    def report_progress(self, num_update: int | None = None) -> None:
        """Restarts the limit of watch(). Called at every step, phase and batch of a verification."""
        self._mark(None if num_update is None else "the following step", num_update)

    @contextlib.contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """Context manager for code that waits for other ranks; reports show ``name``, such as "all-gather features"."""
        if self.watchdog is None:
            yield
            return
        status = self.watchdog.rank_status
        doing, waiting = status.doing, status.waiting
        self.watchdog.mark(name, waiting=True)
        yield
        # Not in a finally block: the report of an error names the collective.
        self.watchdog.mark(doing, waiting)

    def stop_requested(self) -> bool:
        """Returns whether this rank is to save and stop: after SIGUSR1, SIGTERM, or the end of its launcher."""
        return self.watchdog is not None and self.watchdog.state is State.STOPPING

    def end_if_stopped(self) -> None:
        """Ends long work between two updates if any rank is to stop (all-reduce ``stop``).

        Raises:
            StopRequested: some rank is to stop; raised on all ranks.
        """
        if self.max("stop", float(self.stop_requested())):
            raise StopRequested

    def training_begun(self) -> None:
        """Starts the phase in which an error exits with code 1, and a stop request first saves a checkpoint."""
        self.exit_code = FAILED
        if self.watchdog is not None:
            self.watchdog.advance(State.TRAINING)

    def _mark(self, doing: str | None = None, num_update: int | None = None) -> None:
        if self.watchdog is not None:
            self.watchdog.mark(doing, num_update=num_update)
        elif self._timeout:
            faulthandler.dump_traceback_later(self._timeout, exit=True)
