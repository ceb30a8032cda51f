"""The output and the files of a training, and the commands that it suggests."""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys

import pytest
from conftest import LIMIT, VERIFIED
from outcome import check_outcome

from paths import ROOT

GOLDEN = ROOT / "tests" / "assets" / "demo_losses.json"


@pytest.mark.slow
def test_the_commands_that_a_training_suggests_run_in_any_folder(run, succeed, settings, tmp_path):
    """Runs the suggested run.sh commands without a launcher, as run.sh passes its arguments to the program."""
    out, program = tmp_path / "a folder" / "run", f"{sys.executable} {ROOT}/train_memory.py"
    trained = run("python", "train_memory.py", *settings, *VERIFIED, "trackers=jsonl", f"output={out}")
    _, _, suggested = trained.stdout.partition("next: ")
    commands = [line.rpartition("-      ")[2] for line in suggested.splitlines()]
    assert len(commands) == 3, trained.stdout + trained.stderr
    assert sum(command.startswith(f"NP=1 bash {ROOT}/run.sh --config ") for command in commands) == 2
    for command in commands:
        command = command.replace(f"bash {ROOT}/run.sh", program)
        succeed("bash", "-c", f"cd {tmp_path} && unset PYTHONPATH && {command}", PATH="/usr/bin:/bin")
    trained_settings = [json.loads((path / "settings.json").read_text()) for path in sorted(out.parent.iterdir())]
    losses_and_ratios = [(each["loss"], each["sample_ratio"]) for each in trained_settings]
    assert losses_and_ratios == [("arcface", 1), ("cosface", 1), ("arcface", 0.1)]


def test_run_sh_and_a_run_from_its_settings_json(succeed, settings, tmp_path):
    """The second run gives the same numbers and keeps the first run's files."""
    folder = tmp_path / "models" / "small-cosface-demo"
    path = folder / "settings.json"
    commands = [["bash", "run.sh", "--loss", "cosface", *settings, *VERIFIED, "sample_ratio=0.5,1.0"]]
    commands += [["bash", "run.sh", "--config", path]]
    summaries, documents = [], []
    for command in commands:
        succeed(*command, NP="1")
        summaries.append(check_outcome(folder, 1, loss="cosface"))
        documents.append(path.read_text())
    assert summaries[0]["sample_ratio"] == [0.5, 1.0]
    assert summaries[0]["final_loss"] == summaries[1]["final_loss"]
    assert summaries[0]["verification"] == summaries[1]["verification"]
    assert documents[0] == documents[1]
    assert json.loads(documents[0]).items() >= {"loss": "cosface", "max_update": 7, "sample_ratio": [0.5, 1.0]}.items()
    (first,) = folder.glob("earlier-*")
    assert json.loads((first / "summary.json").read_text()) == summaries[0]
    assert {path.name for path in folder.iterdir()} == {path.name for path in first.iterdir()} | {first.name, ".lock"}


def test_debug_mode_needs_no_data(succeed, tmp_path):
    arguments = ["--dataset", "100w", f"models_root={tmp_path}", "num_classes=1000", "embedding_size=64"]
    words = ["batch_size=4", "max_update=3", "frequent=1", "sample_ratio=0.1"]
    result = succeed(sys.executable, "train_memory.py", *arguments, *words)
    assert "training on dummy data" in result.stdout
    summary = json.loads((tmp_path / "small-arcface-100w" / "summary.json").read_text())
    assert (summary["updates"], summary["verification"]) == (3, {})


def test_the_first_losses_are_the_golden_ones(run, settings):
    arguments = [argument for argument in settings if not argument.startswith("frequent")]
    # At s = 64 or a rate of 0.02, seven steps magnify the rounding differences between processors to 1 %. With these
    # settings, four steps differ by at most 0.06 % between an Intel with AMX and two AMD processors, six by 0.4 %.
    arguments += ["frequent=1", "loss_s=4", "backbone_lr=0.005", "memory_bank_lr=0.005", "warmup_steps=0"]
    arguments += ["max_grad_norm=0", "max_update=4"]
    result = run("bash", "run.sh", *arguments)
    losses = [float(loss) for loss in re.findall(r"Loss (\d+\.\d+)", result.stdout)]
    if os.environ.get("PARTIAL_FC_UPDATE_ASSETS"):
        GOLDEN.write_text(json.dumps(losses) + "\n")
    assert losses == pytest.approx(json.loads(GOLDEN.read_text()), rel=2e-3), result.stdout + result.stderr


def test_a_terminal_shows_a_progress_bar(settings):
    leader, follower = pty.openpty()
    command = ["bash", "run.sh", *settings]
    environment = {**os.environ, "NP": "1"}
    with subprocess.Popen(command, cwd=ROOT, stdout=follower, stderr=follower, env=environment) as process:
        os.close(follower)
        output = b""
        with contextlib.suppress(OSError):  # EIO on Linux, once the last writer has closed the terminal
            while piece := os.read(leader, 65536):
                output += piece
        assert process.wait(timeout=LIMIT) == 0, output
    os.close(leader)
    assert b"7/7" in output and b"step" in output
    assert b"Global Step: 6" in output
