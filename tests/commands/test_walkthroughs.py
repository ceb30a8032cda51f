"""The shell blocks of the quick start, the tutorial and the fine-tuning page run; translations have the same blocks."""

import re
import subprocess

import pytest
from conftest import LIMIT, TORCH, needs_torch

from paths import ROOT

DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHORT = "max_update=10 verify_every=5 frequent=5 checkpoint_every=5"  # the whole demo takes minutes


def blocks(page):
    return BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", ["quickstart.md", "tutorial.md"])
def test_both_languages_have_the_same_commands(page):
    assert blocks(page) and blocks(page) == blocks(f"zh/{page}")


def run_blocks(page, folder, *changes, **environment):
    """Runs a page's blocks in one shell in the clone, with data/ and models/ in ``folder``; returns the output."""
    script = "\n".join(["set -eo pipefail", *blocks(page)])
    for old, new in [*changes, (r"(?<=[ =])(data|models)/", rf"{folder}/\1/")]:
        script, count = re.subn(old, new, script)
        assert count, old
    env = {"PATH": "/usr/bin:/bin", **environment}
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=500, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@needs_torch
def test_the_quick_start(faces, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "demo").symlink_to(faces.parent)
    settings = f"dataset=demo rec={faces} num_classes=20 batch_size=8 models_root={tmp_path}/models {SHORT}"
    output = run_blocks(
        "quickstart.md",
        tmp_path,
        ("git clone .*\n", ""),
        # Keeps the default network, loss and set, whose names are in the demo's folder.
        (r"(bash pytorch/run\.sh.*)", rf"\1 {settings}"),
        NP="1",  # the tutorial has two
        OMP_NUM_THREADS="1",
    )
    assert "usage: partial-fc" in output and "similarity" in output
    assert (tmp_path / "models" / "comparison.html").exists()
    assert (tmp_path / "data" / "embeddings.npy").exists()


@pytest.mark.slow
@needs_torch
def test_the_tutorial(tmp_path):
    (tmp_path / "data").mkdir()
    output = run_blocks(
        "tutorial.md",
        tmp_path,
        (r"(images-per-identity 10)", r"\1 --pairs 20"),
        ("num-pairs 600", "num-pairs 200"),
        # Only one of the two trainings has to learn something.
        (r"num_epoch=30 'lr_epochs=\[20\]'(.*mine-cosface)", r"num_epoch=2 'lr_epochs=[2]'\1"),
        (r"num_epoch=30 'lr_epochs=\[20\]'", "num_epoch=8 'lr_epochs=[5]'"),
    )
    accuracies = [float(value) for value in re.findall(r"Accuracy-Highest: ([\d.]+)", output)]
    assert max(accuracies) > 0.7, output  # 10 images of 70 people are few; untrained it is 0.685
    assert "verdict" in output and "rank  similarity  name" in output
    assert (tmp_path / "models" / "mine-comparison.html").exists() and (tmp_path / "data" / "sheet.png").exists()


@pytest.mark.slow
@needs_torch
def test_fine_tuning(faces, tmp_path):
    base = ["dataset=demo", f"rec={faces}", "num_classes=20", "max_update=4", "val_targets=[]", "baselines=False"]
    output = f"output={tmp_path}/models/small-arcface-demo"
    env = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    train = [TORCH / "python", "train.py", *base, output]
    done = subprocess.run(train, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "data").mkdir()
    shown = run_blocks(
        "finetuning.md",
        tmp_path,
        ("--images-per-identity 10", "--images-per-identity 2"),
        ("num-pairs 2000", "num-pairs 40"),
        ("max_update=100 (.*) verify_every=50", r"max_update=3 \1 verify_every=2"),
        # Runs all trainings in forks of one process, which imports PyTorch once.
        (r"(?m)^python train\.py (.*)$", r'jobs="$jobs -- 1 train \1"'),
        ("(partial-fc report compare)", r"python tests/in_turn.py ${jobs# -- }\n\1"),
        OMP_NUM_THREADS="1",
    )
    assert shown.count("starts from the weights in") == 4
    assert shown.count("new centers of 200 classes: the mean embeddings of their items") == 3
    assert (tmp_path / "models" / "finetuning.html").exists()


@needs_torch
def test_the_commands_of_fine_tuning_for_every_kind_of_file_are_accepted():
    page = (DOCS / "finetuning.md").read_text(encoding="utf-8")
    block = page.partition("## From every kind of file")[2].split("```")[1]
    commands = re.findall(r"^python train\.py \$new (.*?) *(?:#.*)?$", block, re.MULTILINE)
    assert len(commands) == 10
    new = ["rec=data/masked_set", "num_classes=200", "max_update=100", "schedule=polynomial"]
    program = f"""
from train import TorchTraining
for words in {commands}:
    program = TorchTraining()
    program.load_settings(program.parse_args([*{new}, *words.split()]))
"""
    done = subprocess.run([TORCH / "python", "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
