"""The command line of train_memory.py as far as it needs no MXNet."""

import json
import os
import subprocess
import sys

import pytest

import default
from paths import ROOT

# Like the program itself (-c puts the working folder first), and fails if MXNet, Horovod or the trainer is imported.
PROGRAM = """
import runpy, sys
sys.argv = sys.argv[1:]
for name in ("mxnet", "horovod", "partial_fc_mxnet"):
    sys.modules[name] = None
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def train_memory(*arguments, **environment):
    command = [sys.executable, "-c", PROGRAM, "train_memory.py", *arguments]
    env = {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)


def rank(number):
    """What Open MPI's mpirun tells one of two ranks."""
    values = {"RANK": number, "SIZE": 2, "LOCAL_RANK": number, "LOCAL_SIZE": 2}
    return {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in values.items()}


@pytest.mark.parametrize("arguments, part", [(["--help"], "momentum=0.9 "), (["--print-config"], '"momentum": 0.9')])
def test_help_and_settings_are_printed_by_rank_0_only(arguments, part):
    results = [train_memory(*arguments, **rank(number)) for number in (0, 1)]
    assert [(result.returncode, result.stderr) for result in results] == [(0, "")] * 2
    assert results[0].stdout.count(part) == 1 and results[1].stdout == ""


def test_help_lists_every_setting_and_option():
    text = train_memory("--help").stdout
    assert default.describe_settings() in text
    assert "bash run.sh" in text
    assert all(option in text for option in ("--config FILE", "--print-config", "--models-root", "--class-map"))


def test_a_printed_configuration_can_be_run_again_and_overridden(tmp_path):
    arguments = ["--dataset", "emore", "--loss=cosface", "lr=0.3", f"--models-root={tmp_path}"]
    printed = train_memory(*arguments, "--print-config").stdout
    path = tmp_path / "printed.json"
    path.write_text(printed)
    assert train_memory("--config", str(path), "--print-config").stdout == printed
    settings = json.loads(train_memory("--config", str(path), "lr=0.2", "--print-config").stdout)
    assert settings == {**json.loads(printed), "lr": 0.2}
    assert (settings["num_classes"], settings["margins"]) == (85742, [1.0, 0.0, 0.4])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["momentum=1.5"], "error: momentum is 1.5, but must be at least 0 and below 1\n"),
        (["--network", "r10"], "error: unknown network 'r10': did you mean 'r100'? "),
        (
            ["--config", "none.json"],
            f"error: cannot read the settings in {ROOT}/none.json: No such file or directory\n",
        ),
        (["--momentum", "0.5"], "error: unrecognized arguments: --momentum; see python train_memory.py --help\n"),
        (["--profile-seconds", "3"], "error: --profile-seconds is 3.0, but must be above 0 and go with --profile-io; "),
    ],
)
@pytest.mark.parametrize("more", [[], ["--print-config"]])
def test_what_is_refused_ends_with_one_line_and_without_a_folder(arguments, message, more, tmp_path):
    result = train_memory(*arguments, *more, f"models_root={tmp_path / 'models'}")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(message) and result.stderr.count("\n") == 1
    assert not (tmp_path / "models").exists()
