"""A limit on the open files of this process, as users' shells set it."""

import os
import resource
from contextlib import contextmanager


@contextmanager
def few_open_files(more):
    """Allows this process to open only this many more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
