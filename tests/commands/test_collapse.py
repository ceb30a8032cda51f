"""The demo's first updates: sound with its recipe, and named for what they are with one that goes wrong."""

import json
import sys

import pytest

import default
from partial_fc.synthetic_faces import ensure_demo

UPDATES = 300


@pytest.fixture(scope="module")
def demo():
    """The demo's faces in the clone, where `bash run.sh` has them."""
    settings = default.generate_config(dataset_name="demo")
    ensure_demo(f"{settings.data_root}/{settings.data_name}")


def outcome(run, tmp_path, command, *words, **environment):
    """(summary, what was printed) of the demo's first updates."""
    first = [f"max_update={UPDATES}", f"models_root={tmp_path}", "checkpoint_every=0"]
    result = run(*command, *first, *words, timeout=240, **environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return json.loads((tmp_path / "small-arcface-demo" / "summary.json").read_text()), result.stdout


@pytest.mark.usefixtures("demo")
@pytest.mark.parametrize("ranks, threads", [(1, 2), (2, 1)])
def test_the_recipe_is_sound_from_the_start(ranks, threads, run, tmp_path):
    summary, _ = outcome(run, tmp_path, ["bash", "run.sh"], NP=str(ranks), OMP_NUM_THREADS=str(threads))
    last = summary["verification_details"]["demo_val"]
    # On the machines that were tried: 0.79 and more, 6 dimensions and more, 0.89 and more.
    assert last["accuracy"] > summary["baselines"]["raw_pixels"] + 0.05
    assert last["dimensions"] > 4 and last["agreement"] > 0.8
    assert summary["problems"] == {}


@pytest.mark.usefixtures("demo")
def test_a_collapse_is_said_with_what_to_change(run, tmp_path):
    words = ["lr=0.8", "warmup_steps=0", "max_grad_norm=0", "verify_every=100"]
    summary, output = outcome(run, tmp_path, [sys.executable, "train_memory.py"], *words, OMP_NUM_THREADS="2")
    (problem, *_, change) = summary["problems"]["demo_val"]
    assert "they have collapsed into a cone" in problem
    assert change.startswith("begin again with lower rates (lr=0.4)") and "max_grad_norm=5" in change
    # Python's logging goes to standard output here, as every line of a training does.
    assert f"[demo_val][{UPDATES}] {problem}" in output and f"[demo_val][{UPDATES}] {change}" in output
    page = (tmp_path / "small-arcface-demo" / "report.html").read_text()
    assert "they have collapsed into a cone" in page and "begin again with lower rates" in page
