"""A lock of a folder that only one command may change at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def locked(folder: str) -> Iterator[None]:
    """Keeps other commands from changing a folder. Raises OSError if one does."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(f"{folder} is being changed by another command: wait for its end") from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(descriptor)
