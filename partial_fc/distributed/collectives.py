"""Named collectives between the ranks of a job, written once for all frameworks.

A trainer implements Backend for its framework and hands one Collectives object to the code that needs other ranks.
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
    """What a framework provides. Collectives are matched between ranks by their names.

    Attributes:
        rank: of this process in the job.
        size: the number of ranks of the job.
        user_errors: of the framework, which a user can fix, beside USER_ERRORS.
    """

    @property
    def user_errors(self) -> tuple[type[Exception], ...]: ...

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def gather_object(self, name: str, value: Any) -> list[Any]:
        """Returns the values of all ranks, which can be pickled, by rank."""

    def max(self, name: str, value: float) -> float:
        """Returns the largest value of all ranks, as float32."""

    def barrier(self, name: str) -> None:
        """Returns when all ranks have called it."""

    def abort(self, code: int) -> None:
        """Ends all ranks with this exit code, if the framework can; otherwise returns."""

    def error_message(self, error: BaseException) -> str:
        """Returns the message of an error, without what the framework adds to it."""

    def is_connection_error(self, error: BaseException) -> bool:
        """Returns whether a collective failed because another rank left it."""


class Collectives:
    """The collectives of this process, which is one rank of one job. A single rank communicates with nobody.

    Attributes:
        backend: of the framework.
        watchdog: is notified of the progress of this rank; None without one.
        exit_code: of an error.
        local_rank: of this process on its host, from the launcher; 0 without one.
        local_size: the number of ranks on this host, from the launcher; 1 without one.
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
        """Returns the values of all ranks, by rank (all-gather ``name``)."""
        if self.size == 1:
            return [value]
        with self.waiting(f"all-gather {name}"):
            return self.backend.gather_object(name, value)

    def broadcast(self, name: str, value: Any) -> Any:
        """Returns the value of rank 0 (all-gather ``name``); the values of the other ranks are ignored."""
        return self.gather_object(name, value if self.rank == 0 else None)[0]

    def max(self, name: str, value: float) -> float:
        """Returns the largest value of all ranks, as float32 (all-reduce ``name``)."""
        if self.size == 1:
            return value
        with self.waiting(f"all-reduce {name}"):
            return self.backend.max(name, value)

    def barrier(self, name: str) -> None:
        """Returns when all ranks have called it (all-gather ``name``)."""
        if self.size > 1:
            with self.waiting(f"all-gather {name}"):
                self.backend.barrier(name)

    def assert_same_on_all_ranks(self, facts: Mapping[str, Any]) -> None:
        """Checks that some values, which JSON can represent, are the same on all ranks (all-gather ``agree``).

        Raises JobError on every rank, with the name of the fact and the ranks that differ.
        """
        message = differences(self.gather_object("agree", facts))
        if message:
            raise JobError(message)

    def run_on_all_ranks(self, name: str, work: Callable[[], Result]) -> Result:
        """Runs ``work`` on every rank and returns its result, or raises the same error on all of them.

        Collectives: all-gather of the errors, named ``status.<name>``.

        Raises:
            JobError: ``work`` failed on some rank; the error of the lowest one, with its number.
        """
        results: list[Result] = []
        error_message = None
        self._mark(name)
        try:
            results.append(work())
        except (Exception, SystemExit) as error:
            place, is_refusal = place_in_user_code(error), isinstance(error, USER_ERRORS + self.backend.user_errors)
            if not (is_refusal or place or isinstance(error, RuntimeError)):  # MXNet raises some in binding
                raise
            error_message = described(error) if place and not is_refusal else self.backend.error_message(error)
            if not (is_refusal or place):
                error_message += f" ({place_of(error)})"
            if not isinstance(error, JobError):  # whose message was made on all ranks
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

    def watch(self, seconds: float, host_seconds: float) -> None:
        """Ends the job, reporting what this rank does, unless report_progress() is called within ``seconds``.

        0 sets no limit. A rank that waits for one that never comes would wait forever under Gloo, and under MPI if the
        other rank is stopped rather than dead. A rank that waits for one that makes progress waits on. The job ends,
        too, after ``host_seconds`` without a byte from another host.
        """
        self._timeout = seconds
        if self.watchdog is not None:
            self.watchdog.timeout, self.watchdog.host_timeout = seconds, host_seconds
        self._mark()

    def report_progress(self, num_update: int | None = None) -> None:
        """Resets the limit of watch(): called at every step, phase and batch of a verification, with its update."""
        self._mark(None if num_update is None else "the following step", num_update)

    @contextlib.contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """A context for code that returns only when all ranks take part, such as ``all-gather features``."""
        if self.watchdog is None:
            yield
            return
        status = self.watchdog.rank_status
        doing, waiting = status.doing, status.waiting
        self.watchdog.mark(name, waiting=True)
        yield
        # Not after an error: its report names the collective.
        self.watchdog.mark(doing, waiting)

    def stop_requested(self) -> bool:
        """Returns whether this rank was asked to save and stop: by SIGUSR1, SIGTERM, or the end of its launcher."""
        return self.watchdog is not None and self.watchdog.state is State.STOPPING

    def end_if_stopped(self) -> None:
        """Ends long work between two updates if a rank was asked to stop (all-reduce ``stop``).

        Raises:
            StopRequested: on every rank.
        """
        if self.max("stop", float(self.stop_requested())):
            raise StopRequested

    def training_begun(self) -> None:
        """From now on an error ends the job with exit code 1, and a stop request first saves a checkpoint."""
        self.exit_code = FAILED
        if self.watchdog is not None:
            self.watchdog.advance(State.TRAINING)

    def _mark(self, doing: str | None = None, num_update: int | None = None) -> None:
        if self.watchdog is not None:
            self.watchdog.mark(doing, num_update=num_update)
        elif self._timeout:
            faulthandler.dump_traceback_later(self._timeout, exit=True)
