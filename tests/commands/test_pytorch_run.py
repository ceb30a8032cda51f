"""pytorch/run.sh around a small program: threads, restarts, the stop signal and exit codes."""

import os
import shutil
import signal
import subprocess

import pytest
from conftest import TORCH, needs_torch, slow

from paths import ROOT

LIMIT = 90  # seconds
# Trains 3 steps, or until it is asked to stop. The second rank fails in the first attempt if it is asked to. A process
# that ends otherwise while Gloo has threads may abort.
PROGRAM = """
import os, signal, sys, time
if "--print-config" in sys.argv:  # how run.sh asks whether the settings are accepted
    print("{}")
    sys.exit(2 if "refused" in sys.argv else 0)
import torch, torch.distributed as dist

asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
dist.init_process_group("gloo")
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"attempt {attempt} threads {os.environ['OMP_NUM_THREADS']}\\n", end="", flush=True)
if "fail" in sys.argv and (attempt, dist.get_rank()) == ("0", 1):
    os._exit(3)
for _ in range(10**6 if "endless" in sys.argv else 3):
    time.sleep(0.1)
    stop = torch.tensor([len(asked)])
    dist.all_reduce(stop)
    if stop:
        print("saved\\n", end="", flush=True)
        os._exit(75)
dist.destroy_process_group()
print("finished\\n", end="")
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
        # The program, unlike train.py, would find the addresses of the first attempt.
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        command = ["bash", str(clone / "pytorch" / "run.sh"), *arguments]
        return subprocess.Popen(command, env=environment, text=True, start_new_session=True, **pipes)

    return start_run


def test_a_failed_process_restarts_all_and_the_code_is_0(start):
    with start("fail", NP="2", MAX_RESTARTS="1") as group:
        output, _ = group.communicate(timeout=LIMIT)
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    assert group.returncode == 0, output
    assert output.count(f"attempt 1 threads {share}\n") == output.count("finished\n") == 2


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 75), slow(signal.SIGUSR1, 75), (signal.SIGINT, 130)])
def test_a_signal_stops_all_processes(start, number, code):
    with start("endless", NP="2", OMP_NUM_THREADS="1") as group:
        for line in group.stdout:
            if line.startswith("attempt 0"):
                break
        group.send_signal(number)
        output, _ = group.communicate(timeout=LIMIT)
    assert group.returncode == code, output
    assert output.count("saved\n") == (0 if number == signal.SIGINT else 2), output


def test_the_exit_code_is_that_of_the_failed_process(start):
    with start("fail", NP="2", OMP_NUM_THREADS="1") as group:
        output, _ = group.communicate(timeout=LIMIT)
    assert group.returncode == 3 and "ChildFailedError" not in output, output


def test_refused_settings_start_nothing(start):
    with start("refused", NP="2") as group:
        output, _ = group.communicate(timeout=LIMIT)
    assert group.returncode == 2 and not output
