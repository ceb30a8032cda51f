"""The same tests run on 1, 2 and 3 ranks under torchrun; without it in one process that has no process group.

The marker `world_size` restricts a test to some numbers of ranks.
"""

import faulthandler
import os
import sys

import pytest
import torch
import torch.distributed as dist

from partial_fc_torch.collectives import OF_PROCESS

torch.set_num_threads(1)
if "RANK" in os.environ:
    dist.init_process_group("gloo")
RANK, SIZE = OF_PROCESS.rank, OF_PROCESS.size
# If a test fails on one rank, the other ranks wait in a collective. They exit after this time.
TIMEOUT = 120  # seconds


def pytest_collection_modifyitems(config, items):
    selected, deselected = [], []
    for item in items:
        marker = item.get_closest_marker("world_size")
        (selected if marker is None or SIZE in marker.args else deselected).append(item)
    config.hook.pytest_deselected(items=deselected)
    items[:] = selected


@pytest.fixture(autouse=True)
def time_limit():
    faulthandler.dump_traceback_later(TIMEOUT, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    """Reports a failure on any rank and ends the job, because the other ranks would wait for this one."""
    if report.failed and SIZE > 1:
        print(f"\nrank {RANK} of {SIZE}: {report.nodeid} failed\n{report.longreprtext}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Only rank 0 reports passed tests; a failed test is reported by the rank on which it failed."""
    if RANK != 0:
        sys.stdout = open(os.devnull, "w")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    session.config.exit_code = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """Ends the process itself: at exit, PyTorch 2.13 with Gloo sometimes aborts ("terminate called without ...")."""
    if "RANK" in os.environ and hasattr(config, "exit_code"):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(config.exit_code)
