"""These tests run on 1, 2 and 3 ranks under torchrun, or in one process without a process group.

The marker `world_size` restricts a test to some numbers of ranks.
"""

import os
import sys

import pytest
import torch
import torch.distributed as dist

import interpreted  # noqa: F401  before PyTorch's compiler imports Triton
from parallel_hooks import end_if_failed, limited, select, silence
from partial_fc_torch.collectives import default_collectives

torch.set_num_threads(1)
if "RANK" in os.environ:
    dist.init_process_group("gloo")
RANK, SIZE = default_collectives.rank, default_collectives.size


def has_kernels(item):
    """Returns whether a case trains with kernels, in Triton's interpreter."""
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return any(isinstance(value, dict) and "layer_kernel" in value for value in values)


def pytest_collection_modifyitems(config, items):
    """Leaves .ci/run one case with kernels of a test on several ranks: they are slow, and exchange nothing."""
    select(config, items, SIZE)
    cases = [item for item in items if SIZE > 1 and has_kernels(item)]
    last = {(item.path, item.originalname): item for item in cases}
    for item in cases:
        if last[item.path, item.originalname] is not item:
            item.add_marker("thorough")


@pytest.fixture(autouse=True)
def time_limit():
    yield from limited()


@pytest.fixture
def folder(tmp_path):
    """One folder for all ranks, whose tmp_path differs."""
    return default_collectives.broadcast("folder", str(tmp_path))


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    end_if_failed(report, RANK, SIZE)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    silence(RANK)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    session.config.exit_code = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """Exits at once, because PyTorch 2.13 with Gloo sometimes aborts at exit ("terminate called without ...")."""
    if "RANK" in os.environ and hasattr(config, "exit_code"):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(config.exit_code)
