"""The tests run on 1, 2 and 3 ranks; the marker `world_size` restricts a test to some of these numbers."""

import os

import pytest

from parallel_hooks import end_if_failed, limited, select, silence
from partial_fc.distributed.env import deterministic_allreduce
from partial_fc_mxnet.collectives import default_collectives, hvd

deterministic_allreduce(os.environ)  # as train_memory.py does
hvd.init()


def pytest_collection_modifyitems(config, items):
    select(config, items, hvd.size())


@pytest.fixture(autouse=True)
def time_limit():
    yield from limited()


@pytest.fixture
def folder(tmp_path):
    """One folder for all ranks, although each has its own tmp_path."""
    return default_collectives.broadcast("folder", str(tmp_path))


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    end_if_failed(report, hvd.rank(), hvd.size())


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    silence(hvd.rank())
