"""The example's commands on the typefaces of a few real packages, and both trainers on what they write."""

import shutil
import subprocess

import pytest
from conftest import TORCH, needs_torch

# Some 90 MB; one of Han and Hangul for the gallery, two of training, two new ones.
PACKAGES = ["fonts-noto-cjk", "fonts-wqy-microhei", "fonts-unfonts-core", "fonts-lxgw-wenkai", "fonts-baekmuk"]
SIZE = ["--classes", "60", "--unseen", "40", "--images", "5", "--unseen-images", "3", "--pairs", "100"]


@pytest.fixture(scope="module")
def fonts(tmp_path_factory):
    """Folder for the typefaces."""
    if not shutil.which("apt-get"):
        pytest.skip("apt-get is not installed: the typefaces are in Debian's packages")
    shown = subprocess.run(["apt-cache", "show", *PACKAGES], capture_output=True, text=True)
    if shown.returncode:
        pytest.skip("apt-get does not know the packages of typefaces: run apt-get update")
    return tmp_path_factory.mktemp("fonts")


def succeed(run, *command):
    done = run(TORCH / "python", *command, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def data(run, fonts):
    """The set, drawn by the first test."""
    succeed(run, "-m", "examples.glyphs", "--root", fonts / "set", "--fonts", fonts, *SIZE, "--packages", *PACKAGES)
    return fonts / "set"


@pytest.mark.slow
@needs_torch
def test_every_form_of_the_set_is_trained_on(run, data, tmp_path):
    succeed(run, "tests/every_form.py", tmp_path / "forms", data / "train.rec")


@pytest.mark.slow
@needs_torch
@pytest.mark.timeout(900)  # each of its commands has a limit, too
def test_the_commands_of_the_page(run, data, tmp_path):
    succeed(run, "-m", "examples.glyphs.noise", "flip", data.with_name("set-flip"), "--source", data)
    succeed(run, "-m", "partial_fc", "sets", "check", data)
    program = [TORCH / "python", "benchmarks/experiment.py", "--quick"]
    experiment = [*program, "--data", data, "--folder", tmp_path / "experiment"]
    cases = ["--trainer", "random", "--noise", "flip", "--ratios", "0.1", "--filters", "0.4"]
    done = run(*experiment, *cases, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("| flip | 0.1 | 0.4 | 1 |") == 2  # kinds of typefaces
    cases = ["--ratios", "0.1", "1", "--corrected", "--chart", tmp_path / "experiment.png"]
    done = run(*experiment, *cases, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("| none | 0.1, corrected | 0 | 1 |") == 3  # kinds of typefaces, differences to r = 1
    assert (tmp_path / "experiment.png").stat().st_size > 10000
    cleaning = ["-m", "examples.glyphs.cleaning", "--quick", "--root", data, "--folder", tmp_path / "cleaning"]
    done = run(TORCH / "python", *cleaning, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| classes of a test set |" in done.stdout and "| 20 % of the classes split, cleaned |" in done.stdout
    model = tmp_path / "experiment-quick" / "torch-r1-seed0" / "backbone.onnx"
    done = run(TORCH / "python", "-m", "examples.glyphs.evaluate", model, "--root", data)
    assert done.returncode == 0 and "| trained |" in done.stdout, done.stdout + done.stderr
