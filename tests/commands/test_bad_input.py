"""Bad input ends all ranks fast, with a non-zero exit code and one error message."""

import fcntl
import json
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from partial_fc.data.pairs_bin import read_pairs, write_pairs
from partial_fc.data.recordio.reader import RecordReader
from paths import ROOT

# Starting two ranks that import MXNet takes about 4 s on two free cores; a hang would take forever.
FAST = 45


def refused(run, *arguments, message, **environment):
    """Runs two ranks with these arguments and checks that they end with `message`, once."""
    start = time.monotonic()
    result = run("bash", "run.sh", *arguments, timeout=FAST, **environment)
    output = result.stdout + result.stderr
    assert result.returncode != 0, output
    lines = [line for line in output.splitlines() if not line.startswith("run.sh: ")]  # which repeats the arguments
    assert "\n".join(lines).count(message) == 1, output
    assert output.count("error") == 1, output
    assert "Traceback" not in output
    assert time.monotonic() - start < FAST


# tests/unit/utils/test_config.py has every setting and preset, tests/unit/test_train_memory.py one rank.
@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--dataset", "emor"], "unknown dataset 'emor': did you mean 'emore'?"),
        (["batch_size=many"], "batch_size is 'many', but must be of type int"),
        (["decode_threads=1000000"], "decode_threads is 1000000, but must be at least 0 and at most 1024"),
        (["--sample_ratio", "0.1"], "unrecognized arguments: --sample_ratio"),
    ],
)
def test_settings(run, arguments, message):
    refused(run, *arguments, message=message)


def test_help_is_printed_once(run):
    result = run("bash", "run.sh", "--help", timeout=FAST)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("momentum=0.9 ") == 1


def test_a_data_set_that_is_not_there(run, tmp_path):
    refused(run, "--dataset", "emore", f"data_root={tmp_path}", message=f"{tmp_path}/emore/train.rec")


@pytest.mark.parametrize("name", ["train.rec", "train.idx"])
def test_an_empty_file(run, settings, faces, tmp_path, name):
    for other in ("train.rec", "train.idx", "property"):
        (tmp_path / other).write_bytes(b"" if other == name else faces.with_name(other).read_bytes())
    refused(run, *settings, f"rec={tmp_path / 'train.rec'}", message=str(tmp_path / name))


def test_a_label_past_the_classes_names_the_record(run, settings, faces):
    refused(run, *settings, "num_classes=15", message=f"{faces}: image with key 121 at offset")


def test_a_batch_larger_than_the_data(run, settings):
    refused(run, *settings, "batch_size=200", message="needs 400 images, there are 160")


def test_images_of_another_size(run, settings):
    refused(run, *settings, "image_size=96", message="has images of 112x112")


def test_an_output_folder_that_cannot_be_made(run, settings, tmp_path):
    (tmp_path / "file").write_text("in the way")
    refused(run, *settings, f"models_root={tmp_path / 'file'}", message="cannot create the output folder")


def test_centers_that_do_not_fit_into_memory(run, settings):
    message = "need 7629.4 GiB for the 2 ranks of this host"
    refused(run, *settings, "num_classes=2000000000", "embedding_size=512", message=message)


def test_a_broken_image_ends_all_ranks_unless_it_may_be_skipped(run, settings, faces, tmp_path):
    for name in ("train.idx", "property"):
        (tmp_path / name).write_bytes(faces.with_name(name).read_bytes())
    reader = RecordReader(str(faces), str(faces.with_name("train.idx")))
    content = bytearray(faces.read_bytes())
    start = int(reader.index.offsets[reader.row(77)]) + 8 + 24
    content[start : start + 400] = bytes(400)
    (tmp_path / "train.rec").write_bytes(content)
    # Twelve batches of 16: every image is drawn in the first ten.
    arguments = [*settings, f"rec={tmp_path / 'train.rec'}", "max_update=12"]
    refused(run, *arguments, message="key 77 at offset")
    result = run("bash", "run.sh", *arguments, "skip_bad_images=1")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "skipped, bad image 1 of at most 1: " in result.stdout + result.stderr
    assert "bad images skipped on all ranks: 1" in result.stdout
    summary = json.loads((tmp_path / "models" / "small-arcface-demo" / "summary.json").read_text())
    assert (summary["updates"], summary["skipped_images"]) == (12, 1)


def test_a_damaged_validation_image_ends_all_ranks(run, settings, faces, tmp_path):
    for name in ("train.rec", "train.idx", "property"):
        (tmp_path / name).write_bytes(faces.with_name(name).read_bytes())
    images, issame = read_pairs(faces.with_name("demo_val.bin"))
    # Only the first rank embeds it; the other one must not wait.
    write_pairs(tmp_path / "demo_val.bin", [b"no image", *images[1:]], issame)
    message = "image 0 of the validation set demo_val cannot be decoded (8 bytes) (rank 0 of 2)"
    refused(run, *settings, f"rec={tmp_path / 'train.rec'}", message=message)


def test_a_network_the_images_are_too_small_for(run, settings, faces, tmp_path):
    for name in ("train.rec", "train.idx"):
        (tmp_path / name).write_bytes(faces.with_name(name).read_bytes())
    arguments = [*settings, f"rec={tmp_path / 'train.rec'}", "--network", "mbf", "image_size=16"]
    refused(run, *arguments, message="kernel size exceed input")


def test_a_second_training_into_the_same_folder_is_refused(run, settings, tmp_path):
    folder = tmp_path / "models" / "small-arcface-demo"
    folder.mkdir(parents=True)
    with open(folder / "training.log", "w") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        refused(run, *settings, message=f"another training is writing to {folder}")
    assert folder.exists()


# train_memory.py with what .pth files bring on Python 3.12 and 3.13: distutils, out of setuptools, and the shims.
WITH_SHIMS = """
import importlib.util, runpy, sys
for name in ("setuptools", "stack_shims"):
    if importlib.util.find_spec(name):
        __import__(name)
sys.argv[0] = "train_memory.py"
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def packages_without(missing, folder):
    """A folder of links to every installed package but one."""
    installed = Path(sysconfig.get_paths()["purelib"])
    for path in installed.iterdir():
        if path.name != missing and not path.name.startswith(f"{missing}-") and path.suffix != ".pth":
            (folder / path.name).symlink_to(path)
    return folder


@pytest.mark.parametrize(
    "missing, message",
    [
        ("easydict", "No module named 'easydict'"),
        ("mxnet", "MXNet is not installed"),
        ("horovod", "Horovod is not installed"),
    ],
)
def test_a_missing_package_says_what_to_run(missing, message, settings, tmp_path):
    packages = tmp_path / "packages"
    packages.mkdir()
    roots = [packages_without(missing, packages), ROOT, ROOT / "mxnet"]
    # -S: without site, the environment's own packages are not found, only those of the links.
    command = [sys.executable, "-S", "-c", WITH_SHIMS, *settings]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, roots))}
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=FAST, env=env)
    assert result.returncode != 0
    assert message in result.stderr and "run `bash setup-utils/install.sh`" in result.stderr, result.stderr
    assert "Traceback" not in result.stderr
