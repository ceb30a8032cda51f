"""The first updates of the demo: its recipe is sound, and a collapse with another recipe is reported."""

import json
import sys

import pytest

from partial_fc.data.synthetic import DemoSize, write_demo

pytestmark = pytest.mark.slow

UPDATES = 100
SIZE = {"identities": 250, "images_per_identity": 20, "held_out": 100, "pairs": 500}  # a quarter of the demo's


@pytest.fixture(scope="module")
def demo(made_once):
    """Command-line settings for faces like the demo's."""
    root = made_once("demo", lambda folder: write_demo(folder, DemoSize(seed=1, **SIZE)))
    return ["dataset=demo", f"rec={root / 'train.rec'}", f"num_classes={SIZE['identities']}"]


def outcome(succeed, tmp_path, command, *words, **environment):
    """Runs the demo's first updates; returns (summary, output)."""
    first = [f"max_update={UPDATES}", f"models_root={tmp_path}", "checkpoint_every=0"]
    result = succeed(*command, *first, *words, **environment)
    return json.loads((tmp_path / "small-arcface-demo" / "summary.json").read_text()), result.stdout


def test_the_recipe_is_sound_from_the_start(succeed, demo, tmp_path):
    words = [*demo, "max_update=150", "verify_every=150"]
    summary, output = outcome(succeed, tmp_path, [sys.executable, "train_memory.py"], *words)
    last = summary["verification_details"]["demo_val"]
    assert last["accuracy"] > summary["baselines"]["raw_pixels"] + 0.05
    assert last["dimensions"] > 4 and last["agreement"] > 0.8
    assert (summary["problems"], summary["suggestion"]) == ({}, None)
    assert "start again" not in output


def test_a_collapse_is_reported_with_what_to_change(succeed, demo, tmp_path):
    words = [*demo, "lr=0.8", "warmup_steps=0", "max_grad_norm=0", "verify_every=50"]
    summary, output = outcome(succeed, tmp_path, [sys.executable, "train_memory.py"], *words, OMP_NUM_THREADS="2")
    problem, *_ = summary["problems"]["demo_val"]
    assert "the embeddings have collapsed into a cone" in problem
    assert summary["suggestion"] == "start again with more updates, such as max_update=300, or with more classes"
    assert f"[demo_val][{UPDATES}] {problem}" in output
    assert f"[demo_val][50] if the next verification shows the same, {summary['suggestion']}" in output
    assert f"[demo_val][{UPDATES}] {summary['suggestion']}" in output
    page = (tmp_path / "small-arcface-demo" / "report.html").read_text()
    assert "the embeddings have collapsed into a cone" in page and summary["suggestion"] in page
