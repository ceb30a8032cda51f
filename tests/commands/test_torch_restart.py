"""A job with a fixed port, as the tutorial starts it, killed and started again: both attempts have the same name."""

import contextlib
import os
import signal
import socket

import pytest
from conftest import LIMIT, TORCH, needs_torch
from groups import checkpoints_in, endless, processes_with, started, wait_until

from paths import SOURCES

pytestmark = [pytest.mark.slow, needs_torch]


def test_a_restart_does_not_believe_the_records_of_the_killed_job(settings, tmp_path):
    models, mark = tmp_path / "models", tmp_path / "mark"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    launch = [TORCH / "python", "-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={port}"]
    with started([*launch, "train.py", *endless(settings)]) as group:
        wait_until(lambda: checkpoints_in(models), group)
        killed = processes_with(models)
        # Stopped first: a rank that sees another one's end before its own reports it, and removes the records.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in killed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        group.communicate(timeout=LIMIT)
    (left,) = models.glob(".job-*")
    # Rank 0 waits for rank 1, of which there is only the old record.
    late = [*launch, "tests/commands/with_fault.py", "late", "1", "start", mark, "--"]
    with started([*late, "--resume", "auto", *settings, "max_update=3"], PYTHONPATH=SOURCES) as group:
        output, _ = group.communicate(timeout=LIMIT)
    assert group.returncode == 0 and mark.exists(), output
    assert not left.exists() and "exited" not in output, output
