"""The glyphs example's commands on the typefaces of a few packages, and trainings on the resulting sets."""

import json
import shutil
import subprocess
import sys

import pytest
from conftest import LIMIT, TORCH, needs_torch

from examples.glyphs.drawing import SIZE as SIDE
from examples.glyphs.evaluate import KINDS, SEARCHED
from paths import ROOT
from tiny_onnx import TinyModel

# About 90 MB: one with Han and Hangul for the gallery, two for training, two for new typefaces.
PACKAGES = ["fonts-noto-cjk", "fonts-wqy-microhei", "fonts-unfonts-core", "fonts-lxgw-wenkai", "fonts-baekmuk"]
SIZE = ["--classes", "60", "--unseen", "40", "--images", "5", "--unseen-images", "3", "--pairs", "100"]

pytestmark = [pytest.mark.slow, needs_torch]


def draw(folder):
    """Writes the set and the typefaces."""
    where = ["--root", folder / "set", "--fonts", folder / "fonts"]
    command = [TORCH / "python", "-m", "examples.glyphs", *where, *SIZE, "--packages", *PACKAGES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr


def drawn_once(made_once):
    """Returns the folder of the set and the typefaces, if this machine can fetch these."""
    if not shutil.which("apt-get"):
        pytest.skip("apt-get is not installed: the typefaces are in Debian's packages")
    if subprocess.run(["apt-cache", "show", *PACKAGES], capture_output=True).returncode:
        pytest.skip("apt-get does not know the packages of typefaces: run apt-get update")
    return made_once("glyphs", draw)


@pytest.fixture
def data(made_once, tmp_path):
    """A copy of the set in a folder where the test may write further sets."""
    return shutil.copytree(drawn_once(made_once) / "set", tmp_path / "set")


@pytest.fixture
def output_of(succeed):
    """Runs a program and returns its output."""
    return lambda *command: succeed(TORCH / "python", *command).stdout


def test_every_form_of_the_set_is_trained_on(output_of, data, tmp_path):
    output_of("tests/every_form.py", tmp_path / "forms", data / "train.rec")


def copy_run(models, name, **settings):
    """Copies a finished run to another case's folder, so that the experiment reads it instead of training it."""
    copy = shutil.copytree(models, models.with_name(name), ignore=shutil.ignore_patterns("training.log"))
    content = json.loads((copy / "experiment.json").read_text())
    content["key"]["settings"].update(settings)
    (copy / "experiment.json").write_text(json.dumps(content))
    return copy / "training.log"


def test_the_experiment(output_of, data, tmp_path):
    output_of("-m", "examples.glyphs.noise", "flip", data.with_name("set-flip"), "--source", data)
    output_of("-m", "partial_fc_tools", "sets", "check", data)
    where = ["benchmarks/experiment.py", "--quick", "--data", data, "--folder", tmp_path / "experiment"]
    printed = output_of(*where, "--trainer", "random", "--noise", "flip", "--ratios", "0.1", "--filters", "0.4")
    assert printed.count("| flip | 0.1 | 0.4 | 1 |") == 2  # kinds of typefaces

    output_of(*where, "--ratios", "0.1")
    trained = tmp_path / "experiment-quick" / "torch-r0.1-seed0"
    logs = [copy_run(trained, "torch-r1-seed0", sample_ratio=1.0)]
    logs += [copy_run(trained, "torch-r0.1-corrected-seed0", sampling_correction=True)]
    printed = output_of(*where, "--ratios", "0.1", "1", "--corrected", "--chart", tmp_path / "experiment.png")
    assert printed.count("| none | 0.1, corrected | 0 | 1 |") == 3  # kinds of typefaces, differences to r = 1
    assert (tmp_path / "experiment.png").stat().st_size > 10000
    assert (trained / "training.log").exists() and not any(log.exists() for log in logs)
    assert "| trained |" in output_of("-m", "examples.glyphs.evaluate", trained / "backbone.onnx", "--root", data)


def test_cleaning(output_of, data, tmp_path):
    """Trains only on wrong labels; the folder already has the other models."""
    folder = tmp_path / "cleaning"
    figures = {kind: {measure: [0.5, 0.01] for measure in SEARCHED} for kind in KINDS}
    for name in ("clean", "flip-filter", "flip-cleaned", "split", "split-cleaned", "planted"):
        (folder / name).mkdir(parents=True)
        TinyModel(size=(SIDE, SIDE), features=64).write(folder / name / "backbone.onnx")
        (folder / name / "summary.json").touch()
        (folder / f"{name}.json").write_text(json.dumps(figures))
    printed = output_of("-m", "examples.glyphs.cleaning", "--quick", "--root", data, "--folder", folder)
    rows = dict(line.strip("| ").split(" | ", 1) for line in printed.splitlines() if line.startswith("| "))
    assert "classes of a test set" in rows and "50.00 ± 1.00" in rows["20 % of the classes split, cleaned"]
    assert "50.00 ± 1.00" not in rows["20 % wrong labels"] and (folder / "flip" / "backbone.onnx").exists()


def test_heads(output_of, data, tmp_path):
    """Trains with two heads only; the folder already has the figures of the merged sets."""
    folder = tmp_path / "heads"
    figures = {kind: {measure: [0.5, 0.01] for measure in SEARCHED} for kind in KINDS}
    for way in ("blind", "true"):
        (folder / f"{way}-seed0").mkdir(parents=True)
        (folder / f"{way}-seed0" / "summary.json").touch()
        (folder / f"{way}-seed0.json").write_text(json.dumps(figures))
    where = ["--root", data, "--folder", folder]
    printed = output_of("-m", "examples.glyphs.heads", "--quick", "--seeds", "0", *where)
    assert "true 60 classes, first 45 classes, second 45 classes, blind 90 classes" in printed
    rows = dict(line.strip("| ").split(" | ", 1) for line in printed.splitlines() if line.startswith("| "))
    assert rows["blind merge"].startswith("50.00") and not rows["two heads"].startswith("50.00")
    assert (folder / "heads-seed0" / "heads" / "second").is_dir()


def test_clusters(succeed, data, tmp_path):
    pytest.importorskip("faiss", reason="pip install faiss-cpu")
    words = ["--quick", "--root", data, "--folder", tmp_path / "clusters", "--rounds", "1", "--labelled", "30"]
    printed = succeed(sys.executable, "-m", "examples.glyphs.clusters", *words).stdout
    titles = [line.split(" | ")[0] for line in printed.splitlines() if line.startswith("| ")]
    clusters = ["| clusters, P = 1", "| clusters, P = 5"]
    assert titles == ["| labels", "| random clusters", "| characters, 30 of 60", *clusters, "| characters, all"]
