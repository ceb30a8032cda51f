"""Bad input: one sentence, on one rank's behalf, a non-zero exit of all ranks, and fast."""

import subprocess
import sys
import time

import pytest
from conftest import ROOT

from partial_fc.recordio import RecordReader

# Starting two ranks that import MXNet takes about 4 s on two free cores; a hang would take for ever.
FAST = 45


def refused(run, *words, message, **environment):
    """Runs two ranks with these words and checks that they end with `message`, once."""
    start = time.monotonic()
    result = run("bash", "run.sh", *words, timeout=FAST, **environment)
    output = result.stdout + result.stderr
    assert result.returncode != 0, output
    assert output.count(message) == 1, output
    assert output.count("error") == 1, output
    assert "Traceback" not in output
    assert time.monotonic() - start < FAST


@pytest.mark.parametrize(
    "words, message",
    [
        (["--dataset", "emor"], "unknown dataset 'emor': did you mean 'emore'?"),
        (["--network", "r10"], "unknown network 'r10': did you mean 'r100'?"),
        (["--loss", "arcfase"], "unknown loss 'arcfase': did you mean 'arcface'?"),
        (["sample_rati=0.1"], "unknown setting 'sample_rati': did you mean 'sample_ratio'?"),
        (["sample_ratio=2.0"], "sample_ratio is 2.0"),
        (["batch_size=0"], "batch_size is 0"),
        (["batch_size=many"], "batch_size is 'many', but must be of type int"),
        (["image_size=100"], "image_size is 100"),
    ],
)
def test_settings(run, words, message):
    refused(run, *words, message=message)


def test_a_data_set_that_is_not_there(run, tmp_path):
    refused(run, "--dataset", "emore", f"data_root={tmp_path}", message=f"{tmp_path}/emore/train.rec")


@pytest.mark.parametrize("name", ["train.rec", "train.idx"])
def test_an_empty_file(run, settings, faces, tmp_path, name):
    for other in ("train.rec", "train.idx", "property"):
        (tmp_path / other).write_bytes(b"" if other == name else faces.with_name(other).read_bytes())
    refused(run, *settings, f"rec={tmp_path / 'train.rec'}", message=str(tmp_path / name))


def test_a_label_past_the_classes_names_the_record(run, settings, faces):
    refused(run, *settings, "num_classes=15", message=f"{faces}: image with key 121 has label 15")


def test_a_batch_larger_than_the_data(run, settings):
    refused(run, *settings, "batch_size=200", message="160 images")


def test_images_of_another_size(run, settings):
    refused(run, *settings, "image_size=96", message="96")


def test_an_output_folder_that_cannot_be_made(run, settings, tmp_path):
    (tmp_path / "file").write_text("in the way")
    refused(run, *settings, f"models_root={tmp_path / 'file'}", message="cannot make the output folder")


def test_a_shard_too_large_for_one_array(run, settings):
    message = "start more ranks, at most 4194303 classes fit on each"
    refused(run, *settings, "num_classes=9000000", "embedding_size=512", message=message)


def test_a_broken_image_ends_all_ranks_with_file_and_key(run, settings, faces, tmp_path):
    for name in ("train.idx", "property"):
        (tmp_path / name).write_bytes(faces.with_name(name).read_bytes())
    reader = RecordReader(str(faces), str(faces.with_name("train.idx")))
    content = bytearray(faces.read_bytes())
    start = reader.offset(77) + 8 + 24
    content[start : start + 400] = bytes(400)
    (tmp_path / "train.rec").write_bytes(content)
    refused(run, *settings, f"rec={tmp_path / 'train.rec'}", message="key 77")


def test_a_python_without_the_packages_says_what_to_run(tmp_path):
    # -S leaves the environment's packages out, as a Python would that nobody installed them for.
    result = subprocess.run(
        [sys.executable, "-S", ROOT / "train_memory.py"], capture_output=True, text=True, timeout=FAST, env={"PATH": ""}
    )
    assert result.returncode != 0
    assert "run `bash setup-utils/install.sh`" in result.stderr
    assert "Traceback" not in result.stderr
