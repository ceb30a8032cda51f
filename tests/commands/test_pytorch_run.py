"""pytorch/run.sh around a small program: threads, restarts, the stop signal and exit codes."""

import os
import shutil
import signal
import subprocess

import pytest
from conftest import TORCH, needs_torch

from partial_fc.utils.cores import usable_cores
from paths import ROOT

LIMIT = 90  # seconds
# Runs until it is asked to stop. With "fail", the second rank fails in every attempt.
PROGRAM = """
import os, signal, sys, time
if "--print-config" in sys.argv:  # run.sh asks whether the settings are valid
    print("{}")
    sys.exit(2 if "refused" in sys.argv else 0)

def save(*_):
    print("saved\\n", end="", flush=True)
    os._exit(1 if "full" in sys.argv and os.environ["RANK"] == "1" else 75)

signal.signal(signal.SIGTERM, save)
attempt, threads = (os.environ[name] for name in ("TORCHELASTIC_RESTART_COUNT", "OMP_NUM_THREADS"))
print(f"attempt {attempt} threads {threads}\\n", end="", flush=True)
if "fail" in sys.argv and os.environ["RANK"] == "1":
    os._exit(3)
time.sleep(600)
"""

pytestmark = needs_torch


@pytest.fixture
def clone(tmp_path):
    """A clone with the program as train.py and the installed environment."""
    clone = tmp_path / "clone"
    shutil.copytree(ROOT / "setup-utils", clone / "setup-utils")
    shutil.copytree(ROOT / "pytorch", clone / "pytorch")
    (clone / "setup-utils" / "install-torch.sh").write_text("")
    (clone / ".venv-torch").symlink_to(TORCH.parent)
    (clone / "train.py").write_text(PROGRAM)
    return clone


@pytest.fixture
def start(clone):
    def start_run(*arguments, **variables):
        drop = ("OMP_NUM_THREADS", "NP", "PARTIAL_FC_RUN")
        environment = {**{k: v for k, v in os.environ.items() if k not in drop}, **variables}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        command = ["bash", str(clone / "pytorch" / "run.sh"), *arguments]
        return subprocess.Popen(command, env=environment, text=True, start_new_session=True, **pipes)

    return start_run


def test_a_failed_process_restarts_all_and_run_sh_exits_with_its_code(start):
    with start("fail", NP="2", MAX_RESTARTS="1") as group:
        output, _ = group.communicate(timeout=LIMIT)
    share = max(1, usable_cores() // 2)
    assert group.returncode == 3 and "ChildFailedError" not in output, output
    assert f"attempt 0 threads {share}\n" in output and f"attempt 1 threads {share}\n" in output


@pytest.mark.parametrize(
    "disk, number, code", [("", signal.SIGTERM, 75), ("full", signal.SIGTERM, 1), ("", signal.SIGINT, 130)]
)
def test_a_signal_stops_all_processes(start, disk, number, code):
    """If a process cannot save, run.sh exits with its code."""
    with start("endless", disk, NP="2", OMP_NUM_THREADS="1") as group:
        begun = [next(line for line in group.stdout if line.startswith("attempt 0")) for _ in range(2)]
        assert len(begun) == 2
        group.send_signal(number)
        output, _ = group.communicate(timeout=LIMIT)
    assert group.returncode == code, output
    assert output.count("saved\n") == (0 if number == signal.SIGINT else 2), output


def test_refused_settings_start_nothing(start):
    with start("refused", NP="2") as group:
        output, _ = group.communicate(timeout=LIMIT)
    assert group.returncode == 2 and not output
