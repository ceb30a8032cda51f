"""pytorch/run.sh, whose code is that of `partial-fc train`: threads, restarts, the stop signal and exit codes."""

import os
import shutil
import signal
import subprocess

import pytest
from conftest import TORCH, needs_torch

from partial_fc.distributed.errors import NOTHING_SAVED
from partial_fc.utils.cores import usable_cores
from paths import ROOT

LIMIT = 90  # seconds
# The trainer's launcher; its processes run until they are asked to stop. BEHAVIOR=2 or 3: the second one fails in every
# attempt with this code; full: it cannot save.
PROGRAM = """
import os, signal, sys, time
if "--nproc" in sys.argv:
    from partial_fc.train.torch_training import TorchTraining
    TorchTraining().main()

def save(*_):
    print("saved\\n", end="", flush=True)
    os._exit(1 if os.environ["BEHAVIOR"] == "full" and os.environ["RANK"] == "1" else 75)

signal.signal(signal.SIGTERM, save)
attempt, threads = (os.environ[name] for name in ("TORCHELASTIC_RESTART_COUNT", "OMP_NUM_THREADS"))
print(f"attempt {attempt} threads {threads}\\n", end="", flush=True)
if os.environ["BEHAVIOR"] in ("2", "3") and os.environ["RANK"] == "1":
    os._exit(int(os.environ["BEHAVIOR"]))
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
        command = ["bash", str(clone / "pytorch" / "run.sh"), "debug=True", *arguments]
        return subprocess.Popen(command, env=environment, text=True, start_new_session=True, **pipes)

    return start_run


@pytest.mark.parametrize("code, attempts", [(3, 2), (2, 1)])
def test_a_failed_process_restarts_all_unless_it_refused_and_run_sh_exits_with_its_code(start, code, attempts):
    with start(BEHAVIOR=str(code), NP="2", MAX_RESTARTS="1") as group:
        output, _ = group.communicate(timeout=LIMIT)
    share = max(1, usable_cores() // 2)
    assert group.returncode == code and "Error" not in output, output
    found = [f"attempt {number} threads {share}\n" in output for number in range(2)]
    assert found == [True, attempts == 2], output


@pytest.mark.parametrize(
    "behavior, number, code",
    [("", signal.SIGTERM, 75), ("", signal.SIGUSR1, 75), ("full", signal.SIGTERM, 1), ("", signal.SIGINT, 130)],
)
def test_a_signal_stops_all_processes(start, behavior, number, code):
    """If a process cannot save, run.sh exits with its code."""
    with start("lr=0.2", BEHAVIOR=behavior, NP="2", OMP_NUM_THREADS="1") as group:
        begun = [next(line for line in group.stdout if line.startswith("attempt 0")) for _ in range(2)]
        assert len(begun) == 2
        group.send_signal(number)
        output, _ = group.communicate(timeout=LIMIT)
    assert group.returncode == code, output
    assert output.count("saved\n") == (0 if number == signal.SIGINT else 2), output


def test_one_process_has_the_threads_of_all_cores(start):
    with start(BEHAVIOR="", NP="1") as group:
        assert f"attempt 0 threads {usable_cores()}\n" in group.stdout
        group.terminate()
        group.communicate(timeout=LIMIT)


def test_refused_settings_start_nothing(start):
    with start("sample_ratio=7", NP="2") as group:
        output, _ = group.communicate(timeout=LIMIT)
    assert group.returncode == 2 and output.startswith("error: sample_ratio is 7") and output.count("\n") == 1, output


@pytest.mark.parametrize(
    "words, message",
    [
        (["--nproc", "none"], "--nproc"),
        (["--max-restarts=-1"], "--max-restarts"),
        (["--trainer", "jax"], "--trainer"),
        (["debug=False", "rec=nofolder"], "nofolder does not exist: set rec to a folder of images, or another set"),
        (["--recipe", "ms1mv3_r5"], "there is no recipe 'ms1mv3_r5'"),
        (["--nproc", "9999"], f"9999 processes are too many for this host, which has no GPU and {usable_cores()} us"),
    ],
)
def test_wrong_options_are_refused_in_one_line(start, words, message):
    with start(*words) as group:
        output, _ = group.communicate(timeout=LIMIT)
    assert group.returncode == 2 and message in output and output.count("\n") == 1, output


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGINT, 130)])
def test_a_signal_before_the_processes_start(start, clone, number, code):
    ready = clone / "ready"
    os.mkfifo(ready)
    slow = "import time\nfrom pathlib import Path\nPath(__file__).with_name('ready').write_text('')\ntime.sleep(60)\n"
    (clone / "slow.py").write_text(f"{slow}config = {{}}\n")
    with start("--recipe", str(clone / "slow.py"), NP="2") as group:
        ready.read_text()
        group.send_signal(number)
        output, _ = group.communicate(timeout=LIMIT)
    assert (group.returncode, output) in [(code, ""), (130, f"{NOTHING_SAVED}\n")], output
