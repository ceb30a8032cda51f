"""The same tests run on 1, 2 and 3 ranks; the marker `world_size` restricts a test to some numbers of ranks."""

import faulthandler
import os
import sys

import horovod.mxnet as hvd
import pytest

from partial_fc.distributed.env import deterministic_allreduce
from partial_fc_mxnet import collectives

os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"  # tests can start and stop a timeline
deterministic_allreduce(os.environ)  # as train_memory.py does
hvd.init()
# If a test fails on one rank, the other ranks wait in a collective. They exit after this time.
TIMEOUT = 120  # seconds


def pytest_collection_modifyitems(config, items):
    selected, deselected = [], []
    for item in items:
        marker = item.get_closest_marker("world_size")
        (selected if marker is None or hvd.size() in marker.args else deselected).append(item)
    config.hook.pytest_deselected(items=deselected)
    items[:] = selected


@pytest.fixture(autouse=True)
def time_limit():
    faulthandler.dump_traceback_later(TIMEOUT, exit=True)
    yield
    collectives.watch(0, 0)  # resets what a test has set for its process
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    """Reports a failure on any rank and ends the job, because the other ranks would wait for this one."""
    if report.failed and hvd.size() > 1:
        print(f"\nrank {hvd.rank()} of {hvd.size()}: {report.nodeid} failed\n{report.longreprtext}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Only rank 0 reports passed tests; a failed test is reported by the rank on which it failed."""
    if hvd.rank() != 0:
        sys.stdout = open(os.devnull, "w")
