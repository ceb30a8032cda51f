"""On bad input, all ranks of either trainer end fast, with a non-zero exit code and one error message."""

import json
import re
import socket
import sys
from typing import NamedTuple

import pytest
from conftest import IN_TURN, TORCH, needs_torch

from face_sets import jpeg
from partial_fc.data.face_records import write_face_set
from partial_fc.data.recordio.reader import RecordReader
from partial_fc.utils.text import plural

# Starting two ranks that import MXNet takes about 4 s on two free cores.
FAST = 45

# Lines that launchers add: run.sh repeats the arguments; torchrun logs, and reports the exit codes at the end.
OF_LAUNCHER = re.compile(r"^(run\.sh: |W\d{4} ).*\n|^E\d{4} (.|\n)*", re.MULTILINE)


class Program(NamedTuple):
    """A command that trains, its number of ranks, and its exit code for bad input."""

    command: list
    ranks: int
    code: int


RUN_SH = Program(["bash", "run.sh"], 2, 2)
TORCHRUN = Program([TORCH / "torchrun", "--standalone", "--nproc_per_node=2", "train.py"], 2, 1)
# A single process takes a third of the time of two under a launcher.
MXNET = Program([sys.executable, "train_memory.py"], 1, 2)
PYTORCH = Program([*IN_TURN, "1", "train"], 1, 2)
TWO_FORKS = Program([*IN_TURN, "2", "train"], 2, 2)


def refused(run, program, *arguments, message, **environment):
    """Runs all ranks with these arguments; checks that they end with `message`, printed once."""
    result = run(*program.command, *arguments, timeout=FAST, **environment)
    output = result.stdout + result.stderr
    assert result.returncode == program.code, output
    output_of_ranks = OF_LAUNCHER.sub("", output)
    assert output_of_ranks.count(message) == output_of_ranks.count("error") == 1, output
    assert "Traceback" not in output_of_ranks


# tests/unit/settings/test_settings_checks.py has the settings, tests/tools/test_command_line.py the rest.
@pytest.mark.parametrize(
    "program, arguments, message",
    [
        (RUN_SH, ["--dataset", "emor"], "unknown dataset 'emor': did you mean 'emore'?"),
        pytest.param(TORCHRUN, ["--dataset", "emor"], "unknown dataset 'emor': did you mean", marks=needs_torch),
        pytest.param(
            PYTORCH, ["debug=True", "margin=nowhere:own"], "nowhere cannot be imported: ModuleNotF", marks=needs_torch
        ),
    ],
)
def test_settings(run, program, arguments, message):
    refused(run, program, *arguments, message=message)


@pytest.mark.parametrize(
    "program", [pytest.param(RUN_SH, id="MPI"), pytest.param(TWO_FORKS, id="torch", marks=needs_torch)]
)
def test_a_missing_set_is_named_before_the_ranks_meet_and_leaves_no_folder(run, program, tmp_path):
    arguments = [f"rec={tmp_path / 'none'}", "num_classes=2", f"models_root={tmp_path / 'models'}", "max_update=1"]
    refused(run, program, *arguments, message=f"error: {tmp_path / 'none'} does not exist: set rec to a folder of")
    assert list(tmp_path.iterdir()) == []


@needs_torch
def test_a_task_that_ends_the_program_is_named(run, tmp_path):
    text = "import sys\nfrom partial_fc.training.tasks import Task\nclass Exits(Task):\n    def prepare(self, home):\n"
    (tmp_path / "own_exit.py").write_text(f"{text}        sys.exit(0)\n")
    arguments = ["task=own_exit:Exits", "num_classes=2", "max_update=1", "lr_steps=1"]
    refused(run, PYTORCH, *arguments, message="error: SystemExit: 0 (Exits.prepare, ", PYTHONPATH=str(tmp_path))


@pytest.mark.slow
@needs_torch
def test_a_label_past_the_classes_names_the_record(run, settings, faces):
    refused(run, TORCHRUN, *settings, "num_classes=15", message=f"{faces}: image with key 121 at offset")


def test_an_output_folder_that_cannot_be_made(run, settings, tmp_path):
    (tmp_path / "file").write_text("in the way")
    refused(run, MXNET, *settings, f"models_root={tmp_path / 'file'}", message="cannot create the output folder")


@pytest.mark.parametrize(
    "program", [pytest.param(MXNET, id="mxnet"), pytest.param(PYTORCH, id="torch", marks=needs_torch)]
)
def test_centers_that_do_not_fit_into_memory(run, program, settings):
    message = f"need 7629.4 GiB for the {plural(program.ranks, 'rank')} of this host"
    refused(run, program, *settings, "num_classes=2000000000", "embedding_size=512", message=message)


def test_a_broken_image_ends_all_ranks_unless_it_may_be_skipped(run, succeed, settings, faces, tmp_path):
    for name in ("train.idx", "property"):
        (tmp_path / name).write_bytes(faces.with_name(name).read_bytes())
    reader = RecordReader(str(faces), str(faces.with_name("train.idx")))
    content = bytearray(faces.read_bytes())
    start = int(reader.index.offsets[reader.index.search(77)]) + 8 + 24
    content[start : start + 400] = bytes(400)
    (tmp_path / "train.rec").write_bytes(content)
    # Five batches of two ranks, or ten of one rank, contain all 160 images.
    arguments = [*settings, f"rec={tmp_path / 'train.rec'}", "batch_size=16", "max_update=11"]
    refused(run, RUN_SH._replace(code=1), *arguments, message="key 77 at offset")
    result = succeed(*MXNET.command, *arguments, "skip_bad_images=1")
    assert "skipped, bad item 1 of at most 1: " in result.stdout + result.stderr
    assert "bad samples skipped on all ranks: 1" in result.stdout
    summary = json.loads((tmp_path / "models" / "small-arcface-demo" / "summary.json").read_text())
    assert (summary["updates"], summary["skipped_images"]) == (11, 1)


def test_a_network_the_images_are_too_small_for(run, settings, tmp_path):
    write_face_set(tmp_path, [[jpeg(label)] * 8 for label in range(2)], (16, 16))
    arguments = [*settings, f"rec={tmp_path / 'train.rec'}", "--network", "mbf", "image_size=16"]
    refused(run, MXNET, *arguments, message="kernel size exceed input")


def test_images_of_another_size_than_the_training_are_named(run, settings, faces, tmp_path):
    for name in ("train.rec", "train.idx"):  # without the property file
        (tmp_path / name).write_bytes(faces.with_name(name).read_bytes())
    arguments = [*settings, f"rec={tmp_path / 'train.rec'}", "image_size=16"]
    refused(run, MXNET, *arguments, message="image with key 1 at offset 0 has 112x112 pixels instead of 16x16")


@needs_torch
def test_a_port_that_another_program_uses(run, settings):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        ranks = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
        message = f"cannot connect the ranks at 127.0.0.1:{port}: "
        refused(run, PYTORCH, *settings, message=message, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, **ranks)


# Runs a program as if the package in the first argument were not installed.
WITHOUT = """
import runpy, sys
class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == missing: raise ModuleNotFoundError(f"No module named {name!r}", name=name)
missing, *sys.argv = sys.argv[1:]
sys.meta_path.insert(0, Missing())
runpy.run_path(sys.argv[0], run_name="__main__")
"""
IN_VENV, IN_TORCH = "bash setup-utils/install.sh", "pip install -r requirement.txt"


@pytest.mark.parametrize(
    "python, program, missing, message, install",
    [
        (sys.executable, "train_memory.py", "easydict", "No module named 'easydict'", IN_VENV),
        (sys.executable, "train_memory.py", "numpy", "No module named 'numpy'", IN_VENV),
        (sys.executable, "train_memory.py", "horovod", "Horovod is not installed", IN_VENV),
        (TORCH / "python", "train.py", "numpy", "No module named 'numpy'", IN_TORCH),
        # The other trainer's environment, where mxnet is only the clone's folder.
        (TORCH / "python", "train_memory.py", "mxnet.base", "MXNet is not installed", IN_VENV),
        (sys.executable, "train.py", "torch", "PyTorch is not installed", IN_TORCH),
    ],
)
def test_a_missing_package_says_what_to_run(run, python, program, missing, message, install, settings):
    if not TORCH.exists():
        pytest.skip(needs_torch.kwargs["reason"])
    result = run(python, "-c", WITHOUT, missing, program, *settings, timeout=FAST)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr and f"run `{install}`" in result.stderr
    assert result.stderr.count("\n") == 1, result.stderr


@needs_torch
def test_a_folder_named_torch_is_not_pytorch(run, settings, tmp_path):
    (tmp_path / "torch").mkdir()
    command = [sys.executable, "train.py"]
    refused(run, Program(command, 1, 2), *settings, message="PyTorch is not installed", PYTHONPATH=str(tmp_path))
