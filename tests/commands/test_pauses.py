"""A training that is paused (docker pause, a debugger, a frozen virtual machine) goes on when it is continued."""

import os
import re
import signal
import time

import pytest
from conftest import LAUNCHERS, needs_torch
from groups import processes_with, ranks_with, started

COMMANDS = [
    pytest.param(LAUNCHERS["run.sh"][1], id="mxnet"),
    pytest.param(["bash", "pytorch/run.sh"], id="pytorch", marks=needs_torch),
]


def wait_for_updates(group, lines, number):
    """Reads the log until ``number`` further lines of it are there; returns the last update."""
    for line in group.stdout:
        lines.append(line)
        if match := re.search(r"Global Step: (\d+)", line):
            number -= 1
            if not number:
                return int(match[1])
    raise AssertionError("".join(lines))


def pause(pids):
    for number, seconds in ((signal.SIGSTOP, 1.0), (signal.SIGCONT, 0.3)):
        for pid in pids:
            os.kill(pid, number)
        time.sleep(seconds)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_paused_training_goes_on(command, settings, tmp_path):
    ends = ["max_update=1000000", "lr_steps=[500000]", "verify_every=1000000", "save_every=1000000"]
    models, lines = tmp_path / "models", []
    with started([*command, *settings, *ends, "embedding_size=32"], NP="2") as group:
        before = wait_for_updates(group, lines, 2)
        ranks = ranks_with(models)
        for pids in (ranks[:1], ranks, processes_with(models)):  # one rank, all, and their launcher too
            pause(pids)
            pause(pids)
            wait_for_updates(group, lines, 2)
        after = wait_for_updates(group, lines, 5)
        group.send_signal(signal.SIGTERM)
        rest, _ = group.communicate(timeout=60)
    output = "".join(lines) + rest
    assert len(ranks) == 2 and after > before
    assert group.returncode == 75 and "error: " not in output, output
