"""A limit on the open files of this process, as of users' shells."""

import os
import resource
from contextlib import contextmanager


@contextmanager
def few_open_files(more):
    """This process may open so many files more than it has open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
