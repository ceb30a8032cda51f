"""Ending well: an error on one rank, or Ctrl-C, is told once and ends the whole job."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import time
import traceback
from typing import Any, Callable, NoReturn, TypeVar

import horovod.mxnet as hvd
import mxnet as mx

from partial_fc.agreement import differences
from partial_fc.softmax import MissingPositiveError

from .errors import sentence

Result = TypeVar("Result")

# What a user can mend: a sentence is enough. Anything else is a defect and shows its traceback.
USER_ERRORS = (ValueError, OSError, ImportError, FloatingPointError, MemoryError)

EXIT_CODE = 2
EXIT_INTERRUPTED = 128 + signal.SIGINT  # as shells have it


class JobError(ValueError):
    """An error that every rank knows of."""


class Preempted(Exception):
    """The job was asked to stop, and everything that it needs to go on is saved; raised on all ranks.

    Attributes:
        num_update: of the checkpoint.
    """

    def __init__(self, num_update: int):
        super().__init__(f"stopped after update {num_update}, which is saved: --resume auto goes on from there")
        self.num_update = num_update


# Raised on all ranks at the same point, because all of them have seen the same numbers.
_KNOWN_EVERYWHERE = (JobError, MissingPositiveError, FloatingPointError)


# Seconds after which a rank that shows no sign of life ends itself; set by watch().
_patience = 0.0


def gather(name: str, value: Any) -> list[Any]:
    """The values of all ranks, in their order (all-gather ``name``)."""
    return hvd.allgather_object(value, name=name) if hvd.size() > 1 else [value]


def largest(name: str, value: float) -> float:
    """The largest of the ranks' values, as float32 (all-reduce ``name``)."""
    if hvd.size() == 1:
        return value
    return float(hvd.allreduce(mx.nd.array([value]), op=hvd.Max, name=name).asscalar())


def agree(facts: dict) -> None:
    """Makes sure that what must be the same on all ranks is (all-gather ``agree``).

    Args:
        facts: name -> value as JSON has it.

    Raises:
        JobError: on every rank, naming the one that differs and in what.
    """
    found = differences(gather("agree", facts))
    if found:
        raise JobError(found)


def together(name: str, work: Callable[[], Result]) -> Result:
    """Runs ``work`` on every rank and returns its result, or raises the same error on all of them.

    Collectives: all-gather of what went wrong, named ``together.<name>``.

    Raises:
        JobError: ``work`` failed on some rank; the error of the lowest one, with its number.
    """
    result, problem = None, None
    alive()
    try:
        result = work()
    except USER_ERRORS + (RuntimeError,) as error:  # MXNet's own, of which binding makes plain RuntimeErrors
        problem = sentence(error)
    problems = gather(f"together.{name}", problem)
    alive()
    failed = [rank for rank, text in enumerate(problems) if text]
    if failed:
        where = "" if len(failed) == len(problems) else f" (rank {failed[0]} of {len(problems)})"
        raise JobError(problems[failed[0]] + where)
    return result


def watch(seconds: float) -> None:
    """From now on ends this process, showing where it stood, unless :func:`alive` is called within ``seconds``.

    A rank that waits for one that never comes has no other end under Gloo, nor under MPI when the other
    is stopped rather than dead.
    """
    global _patience
    _patience = seconds
    alive()


def alive(num_update: int | None = None) -> None:
    """Tells the watch that this rank goes on: called at every step, phase and batch of a verification."""
    if _patience:
        faulthandler.dump_traceback_later(_patience, exit=True)


@contextlib.contextmanager
def waiting(name: str):
    yield


def stop_requested() -> bool:
    return False


def training_begun() -> None:
    pass


def run(main: Callable[[], None]) -> None:
    """Runs the training of this rank; an error is told on standard error and ends all ranks with exit code 2.

    Ctrl-C ends them with 130 and one word.
    """
    try:
        main()
    except (Exception, KeyboardInterrupt) as error:
        if _interrupted(error):
            _end_interrupted()
        _end_with(error)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _interrupted(error: BaseException | None) -> bool:
    """Whether an error is a KeyboardInterrupt, or came while one was dealt with."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _end_interrupted() -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who presses it once more gets no traceback for that
    # Where every rank is interrupted, rank 0 tells it and ends the others before they do.
    time.sleep(1 if hvd.rank() else 0)
    _tell("interrupted")
    _end(EXIT_INTERRUPTED)


def _end_with(error: BaseException) -> NoReturn:
    if isinstance(error, _KNOWN_EVERYWHERE):
        if hvd.rank() == 0:
            _tell(f"error: {error}")
        if hvd.size() > 1:
            hvd.allgather(mx.nd.zeros((1,)), name="error_told")
    elif isinstance(error, USER_ERRORS):
        # Where every rank stumbles over the same thing, rank 0 tells it and ends the others before they do.
        time.sleep(1 if hvd.rank() else 0)
        _tell(f"error on rank {hvd.rank()}: {error} ({_place(error)})")
    else:
        _tell(f"error on rank {hvd.rank()}, a defect of the program or of its stack:\n{traceback.format_exc()}")
    _end()


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _place(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno}"


def _end(code: int = EXIT_CODE) -> NoReturn:
    sys.stdout.flush()
    if hvd.size() > 1 and hvd.mpi_enabled():
        from mpi4py import MPI  # it would start MPI by itself in a job that runs over Gloo

        MPI.COMM_WORLD.Abort(code)
    # Not sys.exit: Horovod's own ending waits for the other ranks, which may be waiting for this one.
    os._exit(code)
