"""The Python examples in README.md, docs/layer.md and docs/pytorch.md run without changes."""

import json
import os
import re

import pytest
from conftest import TORCH, VERIFIED, needs_torch
from groups import LAUNCH

from paths import ROOT

pytestmark = needs_torch


@pytest.fixture
def run_example(succeed, tmp_path):
    """Runs the example that contains a text, with a launcher and arguments; returns its output."""
    pages = "".join((ROOT / name).read_text() for name in ("README.md", "docs/layer.md", "docs/pytorch.md"))
    programs = re.findall(r"```python\n(.*?)```", pages, re.DOTALL)
    search = os.pathsep.join([str(ROOT), str(ROOT / "pytorch"), str(tmp_path)])
    (tmp_path / "softer.py").write_text(next(each for each in programs if "softer" in each))

    def run_program(text, launcher, *arguments):
        program = tmp_path / "example.py"
        (source,) = (each for each in programs if text in each)
        program.write_text(source.replace('prefix="centers"', f"prefix={str(tmp_path)!r}"))
        return succeed(*launcher, program, *arguments, PYTHONPATH=search, CUDA_VISIBLE_DEVICES="").stdout

    return run_program


def test_the_layer_in_the_readme(run_example):
    """Its Chinese form differs in comments alone."""
    run_example("num_classes=100_000", [TORCH / "python"])
    english, chinese = (
        [
            re.sub(r"  # .*", "", each)
            for each in re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
        ]
        for name in ("README.md", "README_CN.md")
    )
    assert len(english) == 1 and english == chinese


@pytest.mark.slow
def test_the_layer_in_a_program_of_a_user(run_example, tmp_path):
    losses = re.findall(r"loss ([\d.]+)", run_example('prefix="centers"', LAUNCH["torchrun"]))
    assert len(losses) == 2 and losses[0] == losses[1]
    assert len(list(tmp_path.glob("rank_?_softmax_weight.pt"))) == 2


def test_explicit_steps_in_a_loop_of_a_user(run_example):
    assert "3 updates, learning rate 0.01" in run_example("update_in_backward=False", [TORCH / "python"])


@pytest.mark.slow
def test_a_backbone_and_a_margin_of_a_user_are_trained_verified_and_saved(run_example, settings, tmp_path):
    output = tmp_path / "own"
    arguments = [*settings, *VERIFIED, f"output={output}", "margin=softer:softer", "margin_options=m=0.3"]
    printed = run_example("class OwnTraining", LAUNCH["launch.py"], *arguments)
    assert "[demo_val] final accuracy" in printed
    assert json.loads((output / "settings.json").read_text())["loss"] == "own"
    assert all((output / name).stat().st_size for name in ("backbone.pth", "backbone.onnx", "report.html"))
