"""The errors that end a job, and the exit codes of its ranks."""

import os
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from partial_fc.utils.user_code import place_in_user_code

FAILED, REFUSED, PREEMPTED = 1, 2, 75  # 75 is EX_TEMPFAIL of sysexits.h
INTERRUPTED = 128 + signal.SIGINT  # the convention of shells
NOTHING_SAVED = "interrupted: nothing was saved"

# Errors that a user can fix are reported by their message. Any other error is a bug, reported with its traceback.
USER_ERRORS = (ValueError, OSError, ImportError, FloatingPointError, MemoryError)


def place_of(error: BaseException) -> str:
    """Returns the file and line that raised an error."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno}"


def with_user_place(message: str, error: BaseException) -> str:
    """Adds the file and line in the user's code to an error message, if the error arose there."""
    place = place_in_user_code(error)
    return message if place in message else f"{message} ({place})"


@contextmanager
def errors_of_head(name: str, path: str = "") -> Iterator[None]:
    """Adds the head, and the file that describes it, to the messages of errors; without a name they stay as they are.

    An error is changed instead of replaced, because its type decides how the job ends.
    """
    try:
        yield
    except (*USER_ERRORS, RuntimeError) as error:
        prefix = f"{path}: head {name}: " if path else f"head {name}: "
        if name and isinstance(error, OSError) and error.strerror:
            error.strerror = f"{prefix}{error.strerror}"
        elif name and isinstance(error, ImportError):
            error.msg = f"{prefix}{error.msg}"
        elif name:
            error.args = (f"{prefix}{error}",)
        raise


class JobError(ValueError):
    """An error that all ranks raise."""


class StopRequested(Exception):
    """A stop request that interrupts work between two updates. All ranks raise it."""

    def __init__(self, message: str = "stop requested during a verification: ends without a checkpoint of this update"):
        super().__init__(message)


class Preempted(StopRequested):
    """A stop request, after the job has saved a checkpoint. All ranks raise it.

    Attributes:
        num_update: the update of the checkpoint.
    """

    def __init__(self, num_update: int):
        super().__init__(f"stopped after update {num_update}, checkpoint saved: continue with --resume auto")
        self.num_update = num_update
