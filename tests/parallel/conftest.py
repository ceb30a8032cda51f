"""The same tests run under 1, 2 and 3 ranks; `world_size` names the numbers of ranks a test is for."""

import faulthandler
import os
import sys

import horovod.mxnet as hvd
import pytest

from partial_fc.distributed import env as launch
from partial_fc_mxnet import collectives

os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"  # lets a test start and stop a timeline
launch.deterministic_allreduce(os.environ)  # as train_memory.py does
hvd.init()
# A rank whose test failed leaves the others waiting in a collective: nobody waits longer than this.
TIMEOUT = 120


def pytest_collection_modifyitems(config, items):
    kept, left = [], []
    for item in items:
        marker = item.get_closest_marker("world_size")
        (kept if marker is None or hvd.size() in marker.args else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


@pytest.fixture(autouse=True)
def ends():
    faulthandler.dump_traceback_later(TIMEOUT, exit=True)
    yield
    collectives.watch(0, 0)  # what a test may have set for its process
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    """Ends the job at a failure on any rank, with its report: the others would wait for this one."""
    if report.failed and hvd.size() > 1:
        print(f"\nrank {hvd.rank()} of {hvd.size()}: {report.nodeid} failed\n{report.longreprtext}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Only rank 0 reports what passed; what failed is told by the rank it failed on."""
    if hvd.rank() != 0:
        sys.stdout = open(os.devnull, "w")
