"""``--profile-io`` through the user's commands: its output and files, and that it changes no other files."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import LAUNCHERS

from partial_fc.distributed.errors import NOTHING_SAVED
from paths import ROOT

pytestmark = pytest.mark.timed

SHORT = ["--profile-io", "--profile-seconds", "0.5"]
PHASES = ["reader alone", "training, dummy images", "training, the set"]


def test_profile_prints_and_writes_its_figures_and_changes_no_training(succeed, settings, tmp_path):
    ranks, command, environment = LAUNCHERS["run.sh"]
    trained = tmp_path / "models" / "small-arcface-demo"
    trained.mkdir(parents=True)
    (trained / "training.log").write_text("an earlier training")
    result = succeed(*command, *SHORT, *settings, "decode_threads=1", "warmup_steps=10", **environment)
    folder = tmp_path / "models" / "io-profile-small-demo"
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name, trained.name]
    assert [path.name for path in trained.iterdir()] == ["training.log"]
    assert sorted(path.name for path in folder.iterdir()) == ["io_profile.json", "io_profile.png"]
    assert (folder / "io_profile.png").read_bytes().startswith(b"\x89PNG")
    figures = json.loads((folder / "io_profile.json").read_text())
    check_figures(figures, ranks)
    for name, phase in figures["phases"].items():
        assert re.search(rf"^{name} +{phase['samples_per_second']:.1f} ", result.stdout, re.MULTILINE), result.stdout
    assert figures["verdict"]["text"] in result.stdout
    assert f"{folder}/io_profile.png" in result.stdout
    assert "warning" not in (result.stdout + result.stderr).lower()


def check_figures(figures, ranks):
    """Checks the figures' plausibility, for one decoding thread per rank and batches of 8."""
    assert (figures["ranks"], len(figures["rank_hosts"])) == (ranks, ranks)
    assert [rank_host["threads"] for rank_host in figures["rank_hosts"]] == [1] * ranks
    assert list(figures["phases"]) == PHASES
    reader, dummies, training = figures["phases"].values()
    for phase in (reader, dummies, training):
        assert phase["samples_per_second"] * phase["step_seconds"] == pytest.approx(8 * ranks)
        assert all(rank["seconds"] > 0.3 for rank in phase["ranks"])
    for phase in (dummies, training):
        steps = {rank["images"] / 8 for rank in phase["ranks"]}
        assert len(steps) == 1 and min(steps) >= 20  # the same on all ranks
        assert 0 <= phase["wait_share"] <= 1
    assert all(rank["bytes"] == 0 for rank in dummies["ranks"])
    assert all(rank["bytes"] > 0 and 0 < rank["read_seconds"] < rank["busy_seconds"] for rank in training["ranks"])
    assert reader["samples_per_second"] > training["samples_per_second"]


def test_an_interrupted_profile_ends_with_one_line(settings):
    command = [sys.executable, "train_memory.py", *settings, "--profile-io", "--profile-seconds", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as job:
        assert any("training on dummy images" in line for line in job.stdout)
        job.send_signal(signal.SIGINT)
        start = time.monotonic()
        _, errors = job.communicate(timeout=30)
    assert job.returncode == 130, errors
    assert [line for line in errors.splitlines() if line.strip()][-1:] == [NOTHING_SAVED]
    assert "Traceback" not in errors and "unexpected error" not in errors
    assert time.monotonic() - start < 10


def test_ctrl_c_while_the_program_loads(settings):
    command = [sys.executable, "train_memory.py", *settings]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as job:
        while "libmxnet" not in Path(f"/proc/{job.pid}/maps").read_text():
            time.sleep(0.01)
        job.send_signal(signal.SIGINT)
        _, errors = job.communicate(timeout=30)
    assert (job.returncode, errors.strip()) == (130, NOTHING_SAVED)
