"""The errors that end a job, and the exit codes of its ranks."""

import os
import signal
import traceback

from partial_fc.utils.user_code import place_in_user_code

FAILED, REFUSED, PREEMPTED = 1, 2, 75  # the last is EX_TEMPFAIL of sysexits.h
INTERRUPTED = 128 + signal.SIGINT  # as shells count it

# Errors that a user can fix: the message is enough. Any other error is a bug, and is reported with its traceback.
USER_ERRORS = (ValueError, OSError, ImportError, FloatingPointError, MemoryError)


def place_of(error: BaseException) -> str:
    """Returns file and line that raised an error."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno}"


def with_user_place(message: str, error: BaseException) -> str:
    """Returns the message of an error with its place in the code of the user, if it is there and not named yet."""
    place = place_in_user_code(error)
    return message if place in message else f"{message} ({place})"


class JobError(ValueError):
    """An error that is raised on all ranks."""


class StopRequested(Exception):
    """The job was asked to stop, and the work between two updates is left out; raised on all ranks."""

    def __init__(self, message: str = "stop requested during a verification: ends without a checkpoint of this update"):
        super().__init__(message)


class Preempted(StopRequested):
    """The job was asked to stop and has saved a checkpoint; raised on all ranks.

    Attributes:
        num_update: of the checkpoint.
    """

    def __init__(self, num_update: int):
        super().__init__(f"stopped after update {num_update}, checkpoint saved: continue with --resume auto")
        self.num_update = num_update
