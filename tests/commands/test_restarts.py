"""run.sh and pytorch/run.sh restart a failed training from the newest checkpoint; test_torch_hosts.py has torchrun."""

import contextlib
import json
import os
import re
import signal
import socket
import sys

import pytest
from conftest import CLASSES, LIMIT, TORCH, needs_torch
from groups import (
    ENDLESS,
    checkpoints_in,
    endless,
    launcher_of,
    processes_with,
    ranks_with,
    read_until,
    started,
    wait_until,
)

from paths import SOURCES


@pytest.fixture
def arguments(settings):
    """Arguments of a training of some seconds."""
    often = ["max_update=30", "checkpoint_every=5", "verify_every=1000", "save_every=1000"]
    return [*settings, *often, "embedding_size=32", "frequent=10"]


@pytest.mark.slow
@pytest.mark.parametrize("script", ["run.sh", pytest.param("pytorch/run.sh", marks=needs_torch)])
def test_restarts_finish_a_killed_training(script, arguments, tmp_path):
    # Long enough for this process, whose priority may be lower, to kill the ranks before they finish.
    models, command = tmp_path / "models", ["bash", script, *arguments, "max_update=120"]
    # Leaves the checkpoints of an earlier training, from which the next one must not continue.
    with started([*command, "max_update=6", "checkpoint_every=3", "--loss", "arcface"], NP="1") as group:
        output, _ = group.communicate(timeout=LIMIT)
    assert group.returncode == 0 and checkpoints_in(models) == [3, 6], output
    with started(command, MAX_RESTARTS="2", NP="2") as group:
        wait_until(lambda: len(ranks_with(models)) == 2)
        os.kill(ranks_with(models)[0], signal.SIGKILL)  # before training starts
        # Until the earlier results have been moved aside.
        wait_until(lambda: list(models.glob("small-arcface-demo/earlier-*/training.log")))
        (newest, *_) = wait_until(lambda: checkpoints_in(models, "small-arcface-demo"))
        os.kill(ranks_with(models)[1], signal.SIGKILL)
        output, _ = group.communicate(timeout=LIMIT)
    assert group.returncode == 0, output
    if script == "run.sh":
        assert re.findall(r"^run.sh: exit code \d+, restart (\d) of 2$", output, re.MULTILINE) == ["1", "2"], output
    assert newest % 5 == 0 and re.search(r"resumes from update \d*[05],", output), output
    assert json.loads((models / "small-arcface-demo" / "summary.json").read_text())["updates"] == 120


@pytest.mark.slow
def test_a_restart_goes_on_where_the_ranks_of_a_killed_mpirun_have_saved(arguments, tmp_path):
    """Kills mpirun twice; run.sh restarts it once. The ranks save when they notice, and the restart waits for them."""
    models, output = tmp_path / "models", []
    command = ["bash", "run.sh", *arguments, *ENDLESS, "checkpoint_every=0"]
    with started(command, MAX_RESTARTS="1", NP="2") as group:
        output += read_until(group, "Global Step: ")
        launcher_of(group, "mpirun").kill()
        output += read_until(group, "resumes from update ")
        (first,) = checkpoints_in(models)
        output += read_until(group, "Global Step: ")
        launcher_of(group, "mpirun").kill()
        rest, _ = group.communicate(timeout=LIMIT)
        wait_until(lambda: not processes_with(models))
    output = "".join(output) + rest
    assert group.returncode == 128 + signal.SIGKILL, output
    assert re.findall(r"^run.sh: exit code (\d+), restart (.*)$", output, re.MULTILINE) == [("137", "1 of 1")], output
    assert output.count("resumes from update ") == 1 and f"resumes from update {first}," in output, output
    (*_, second) = checkpoints_in(models)
    assert 10 <= first < second, output


@pytest.mark.slow
def test_a_short_soak_ends_with_the_bytes_of_an_undisturbed_training(succeed, faces):
    data = ["dataset=demo", f"rec={faces}", f"num_classes={CLASSES}"]
    arguments = [*data, "batch_size=8", "max_update=60", "checkpoint_every=4"]
    soak = [sys.executable, "benchmarks/soak.py", "--minutes", "0", "--longest", "3", "--kills", "1"]
    result = succeed(*soak, *arguments, NP="2")
    assert "every byte the same" in result.stdout and " with 0 kills" not in result.stdout


@pytest.mark.slow
@needs_torch
def test_a_restart_ignores_the_records_of_a_killed_job_on_the_same_port(settings, tmp_path):
    models, mark = tmp_path / "models", tmp_path / "mark"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # With a fixed port, both jobs have the same name.
    launch = [TORCH / "python", "-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={port}"]
    with started([*launch, "train.py", *endless(settings)]) as group:
        wait_until(lambda: checkpoints_in(models), group)
        killed = processes_with(models)
        # Stop all first: a rank that notices another one's end would report it and remove the records.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in killed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        group.communicate(timeout=LIMIT)
    (left,) = models.glob(".job-*")
    # Rank 1 starts late: until then rank 0 finds only its old record.
    late = [*launch, "tests/commands/with_fault.py", "late", "1", "start", mark, "--"]
    with started([*late, "--resume", "auto", *settings, "max_update=3"], PYTHONPATH=SOURCES) as group:
        output, _ = group.communicate(timeout=LIMIT)
    assert group.returncode == 0 and mark.exists(), output
    assert not left.exists() and "exited" not in output, output
