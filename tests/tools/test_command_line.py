"""The command lines of train_memory.py and train.py that need no framework."""

import json
import os
import subprocess
import sys

import pytest

from paths import ROOT

# Runs the program as a script (-c puts the working folder first), but fails if it imports a framework or a trainer.
PROGRAM = """
import runpy, sys
sys.argv = sys.argv[1:]
for name in ("mxnet", "horovod", "partial_fc_mxnet", "torch", "partial_fc_torch"):
    sys.modules[name] = None
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def mpirun(rank):
    """The variables with which Open MPI's mpirun describes one of two ranks."""
    values = {"RANK": rank, "SIZE": 2, "LOCAL_RANK": rank, "LOCAL_SIZE": 2}
    return {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in values.items()}


def torchrun(rank):
    """The variables with which torchrun describes one of two ranks."""
    numbers = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": 29500}
    texts = {"TORCHELASTIC_RUN_ID": "run", "MASTER_ADDR": "127.0.0.1"}
    return {**texts, **{name: str(value) for name, value in numbers.items()}}


PROGRAMS = {"train_memory.py": ("mxnet", mpirun), "train.py": ("torch", torchrun)}
both = pytest.mark.parametrize("program", PROGRAMS)


def start(program, *arguments, **environment):
    command = [sys.executable, "-c", PROGRAM, program, *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, **pipes)


def finish(process):
    with process:
        output, errors = process.communicate(timeout=60)
    return process.returncode, output, errors


def run(program, *arguments):
    """Returns exit code, output and errors of one process without a launcher."""
    return finish(start(program, *arguments))


@both
@pytest.mark.parametrize("arguments, part", [(["--help"], "momentum=0.9 "), (["--print-config"], '"momentum": 0.9')])
def test_help_and_settings_are_printed_by_rank_0_only(program, arguments, part):
    _, launcher = PROGRAMS[program]
    ranks = [start(program, *arguments, **launcher(rank)) for rank in (0, 1)]
    (code, output, errors), other = map(finish, ranks)
    assert (code, output.count(part), errors) == (0, 1, "")
    assert other == (0, "", "")


@both
def test_help_lists_the_settings_of_a_task(program):
    _, text, _ = finish(start(program, "--help", "task=own_task:Words", PYTHONPATH=str(ROOT / "tests")))
    assert "classes=30 " in text and "words that are trained on (int, at least 2 and at most 1000)" in text


STROKES = """
import colorsys, pencil
from partial_fc.training.tasks import Task
from partial_fc.utils.config import Setting
class Strokes(Task):
    options = (Setting("strokes", 3, "lines of a drawing", at_least=1),)
"""


@both
def test_modules_and_relative_paths_start_at_the_current_folder(program, tmp_path):
    (tmp_path / "strokes.py").write_text(STROKES)
    (tmp_path / "pencil.py").touch()
    (tmp_path / "colorsys.py").write_text("1 / 0")  # a module that is installed is not searched here
    (tmp_path / "mine.yaml").write_text("models_root: runs")

    def run_here(*words):
        done = subprocess.run([sys.executable, ROOT / program, *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "lines of a drawing" in run_here("--help", "task=strokes:Strokes")
    printed = json.loads(run_here("--config", "mine.yaml", "bank_folder=~/bank", "resume=auto", "--print-config"))
    assert (printed["models_root"], printed["data_root"]) == (str(tmp_path / "runs"), str(tmp_path / "data"))
    assert (printed["bank_folder"], printed["resume"]) == (os.path.expanduser("~/bank"), "auto")


@pytest.mark.parametrize(
    "words, code, output, error",
    [
        (["--resume", "1", "--print-config"], 0, '"resume": "auto"', ""),
        (["--print-config", "--nproc", "3"], 0, '"models_root": "{}/models"', ""),
        (["--recipe", "ms1mv3_r50", "--print-config"], 0, '"output": "{}/work_dirs/ms1mv3_r50"', ""),
        (["--help"], 0, "usage: partial-fc train ", ""),
        (["--trainer", "mxnet", "--nproc", "1", "bf16=True"], 2, "", "only the torch trainer has this setting"),
    ],
)
def test_partial_fc_train_in_another_folder_than_the_clone(words, code, output, error, tmp_path):
    command = [sys.executable, ROOT / "partial_fc" / "__main__.py", "train", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, error.format(tmp_path) in done.stderr, list(tmp_path.iterdir())) == (code, True, []), (
        done.stderr
    )
    assert output.format(tmp_path) in done.stdout


@both
def test_a_printed_configuration_can_be_run_again_and_overridden(program, tmp_path):
    arguments = ["--dataset", "emore", "--loss=cosface", "lr=0.3", f"--models-root={tmp_path}", "trackers=mine:Mine"]
    _, printed, _ = run(program, *arguments, "--print-config")
    path = tmp_path / "printed.json"
    path.write_text(printed)
    code, _, error = run(program, "--config", str(path), "--print-config")
    assert code == 2 and f"{path} sets trackers to 'mine:Mine'" in error and error.count("\n") == 1
    assert run(program, "--config", str(path), "--trust-code", "--print-config") == (0, printed, "")
    settings = json.loads(run(program, "--config", str(path), "lr=0.2", "trackers=mine:Mine", "--print-config")[1])
    assert settings == {**json.loads(printed), "lr": 0.2}
    assert (settings["num_classes"], settings["margin_options"]) == (85742, "m1=1.0,m2=0.0,m3=0.4")


@both
def test_every_setting_can_be_given_as_an_option(program):
    words = ["momentum=0.5", "--momentum=0.6", "--batch-size", "32", "--weight_decay=1e-3", "--fp16", "--warmup_steps"]
    words += ["7", "--shuffle", "false", "--warmup_epoch", "-1", "--val_targets=lfw,cfp_fp", "lr=0.2"]
    code, printed, errors = run(program, *words, "--print-config")
    expected = {"momentum": 0.6, "batch_size": 32, "wd": 1e-3, "fp16": True, "shuffle": False, "lr": 0.2}
    expected |= {"warmup_epoch": -1, "warmup_steps": 7, "val_targets": ["lfw", "cfp_fp"]}
    assert (code, errors) == (0, "") and json.loads(printed).items() >= expected.items()


@pytest.mark.parametrize(
    "program, arguments, message",
    [
        ("train_memory.py", ["momentum=1.5"], "momentum is 1.5, "),
        ("train.py", ["--network", "r10"], "unknown network 'r10': did you mean 'r100'? "),
        (
            "train_memory.py",
            ["--config", "none\x1b[2J.json"],
            f"cannot read the settings in {ROOT}/none\\x1b[2J.json: ",
        ),
        ("train_memory.py", ["--profile-seconds", "3"], "--profile-seconds is 3.0, "),
        ("train.py", ["--bach_size", "64"], "unknown setting 'bach_size': did you mean 'batch_size'?"),
        ("train.py", ["--print_config"], "unknown setting 'print_config': did you mean '--print-config'?"),
        ("train.py", ["--weight-decy=1"], "unknown setting 'weight-decy': did you mean 'weight_decay'?"),
        ("train.py", ["--epochs", "3"], "unknown setting 'epochs': set num_epoch"),
        ("train.py", ["--learning-rate=1"], "unknown setting 'learning-rate': set lr"),
        ("train.py", ["--using_wandb", "True"], "unknown setting 'using_wandb': set trackers"),
        ("train.py", ["--lr", "--bf16"], "--lr has no value"),
        ("train.py", ["--conf", "a.json"], "unknown setting 'conf'"),
        ("train.py", ["--val_targets", "lfw", "cfp_fp"], "cannot read 'cfp_fp': settings are given as"),
        ("train.py", ["val_targets=[lfw,", "cfp_fp]"], "cannot read 'cfp_fp]': settings are given as"),
        ("train.py", ["schedule_options=epochs=8,14"], "schedule_options is 'epochs=8,14', "),
        ("train.py", [os.fsdecode(b"output=/a\xff")], "the output folder /a\\udcff is not valid UTF-8: "),
    ],
)
def test_what_is_refused_ends_with_one_line_and_without_a_folder(program, arguments, message, tmp_path):
    code, output, errors = run(program, *arguments, f"models_root={tmp_path / 'models'}")
    assert (code, output) == (2, "")
    assert errors.startswith(f"error: {message}") and errors.count("\n") == 1
    assert not (tmp_path / "models").exists()
