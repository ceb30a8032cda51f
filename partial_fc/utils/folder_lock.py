"""A lock for folders that only one command may change at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def locked(folder: str) -> Iterator[None]:
    """Locks a folder within the block. Raises OSError if another command has locked it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(f"{folder} is being changed by another command: wait until it has ended") from None
        except OSError:
            pass  # not all file systems have locks
        yield
    finally:
        os.close(descriptor)
