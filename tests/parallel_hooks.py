"""Hooks of pytest for the ranks of tests/parallel, shared by both trainers."""

import faulthandler
import os
import sys

# If a test fails on one rank, the other ranks wait in a collective. They exit after this time.
TIMEOUT = 120  # seconds
TERMINAL = 2  # file descriptor; `silence` replaces it by a copy, because pytest captures this one during tests


def select(config, items, size):
    """Deselects the tests whose marker `world_size` excludes this number of ranks."""
    selected, deselected = [], []
    for item in items:
        marker = item.get_closest_marker("world_size")
        (selected if marker is None or size in marker.args else deselected).append(item)
    config.hook.pytest_deselected(items=deselected)
    items[:] = selected


def limited():
    """Body of a fixture that ends the rank, and shows where it is, if a test takes longer than TIMEOUT."""
    faulthandler.dump_traceback_later(TIMEOUT, exit=True, file=TERMINAL)
    yield
    faulthandler.cancel_dump_traceback_later()


def end_if_failed(report, rank, size):
    """Reports a failure on any rank and ends the job, because the other ranks would wait for this one."""
    if report.failed and size > 1:
        print(f"\nrank {rank} of {size}: {report.nodeid} failed\n{report.longreprtext}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def silence(rank):
    """Lets only rank 0 report passed tests; end_if_failed reports a failed test on its rank.

    Called by pytest_configure, where pytest captures no output.
    """
    global TERMINAL
    TERMINAL = os.dup(2)
    if rank != 0:
        sys.stdout = open(os.devnull, "w")
