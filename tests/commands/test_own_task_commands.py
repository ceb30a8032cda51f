"""A user's task through the users' commands: killed and resumed, also on another number of ranks, and its errors."""

import json
import re

import pytest
from conftest import IN_TURN, needs_torch
from groups import LAUNCH, TWO_RANKS, run_with_fault

from paths import ROOT, SOURCES

OWN = ["task=own_task:Words", "network=own_task:network", "num_classes=30", "embedding_size=16", "batch_size=12"]
OWN += ["max_update=15", "lr_steps=[]", "verify_every=5", "checkpoint_every=5", "save_every=100", "trackers=jsonl"]
PATHS = {"PYTHONPATH": f"{SOURCES}:{ROOT / 'tests'}"}
FILES = ("backbone.pth", "backbone.onnx", "rank_0_softmax_weight.pt", "rank_1_softmax_weight.pt")


@pytest.mark.slow
@needs_torch
def test_a_killed_training_is_resumed_to_the_same_bytes_and_on_another_number_of_ranks(succeed, tmp_path):
    whole, killed, alone = (tmp_path / name for name in ("whole", "killed", "alone"))
    saved = whole / "checkpoints" / "step-0000000010"
    rest = ["--", "1", "train", *OWN, f"output={alone}", f"resume={saved}"]
    succeed(*TWO_RANKS, *OWN, f"output={whole}", *rest, **PATHS)
    ended = run_with_fault(
        "torchrun", "kill", 1, "8", [*OWN, f"output={killed}", f"models_root={tmp_path}"], tmp_path / "mark", **PATHS
    )
    assert ended.code != 0 and not (killed / "backbone.pth").exists()
    succeed(*TWO_RANKS, *OWN, f"output={killed}", "--resume", "auto", **PATHS)
    for name in FILES:
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name
    of_two, of_one = (json.loads((folder / "curves.json").read_text())["sets"] for folder in (whole, alone))
    points = [[point["num_update"] for point in of_one[name]] for name in ("pairs", "spellings")]
    assert points == [[5, 10, 15], [5, 10, 15]]
    assert of_one["spellings"][:2] == of_two["spellings"][:2]  # the history of the checkpoint


def test_the_mxnet_trainer_refuses_it_in_one_line(run):
    words = ["network=small" if word.startswith("network") else word for word in OWN if "trackers" not in word]
    done = run("python", "train_memory.py", *words, **PATHS)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: task Words has inputs other than images") and "bash pytorch/run.sh" in line


@needs_torch
def test_an_unforeseen_error_before_the_ranks_connect_is_reported_once(run, tmp_path):
    words = ["task=own_task:Broken", *OWN[1:], f"output={tmp_path}"]
    done = run(*LAUNCH["torchrun"], "train.py", *words, **PATHS)
    assert done.returncode != 0 and "RuntimeError: not what a task raises" in done.stderr
    assert "exited without reporting" not in done.stderr


@needs_torch
@pytest.mark.parametrize("classes, method", [(2, "prepare"), (3, "evaluations")])
def test_an_error_of_its_class_is_one_line_with_its_place(classes, method, run, tmp_path):
    words = ["task=own_task:Failing", *OWN[1:], f"task_options=classes={classes}", f"output={tmp_path}"]
    done = run(*IN_TURN, "1", "train", *words, **PATHS)
    assert done.returncode == 2
    (line,) = (line for line in done.stderr.splitlines() if "error" in line)
    assert re.fullmatch(rf"error.*: the user's text.* \(Failing.{method}, .*own_task.py:\d+\)", line)


@needs_torch
@pytest.mark.slow
def test_the_reading_of_its_set_is_measured(succeed, tmp_path):
    words = [word for word in OWN if "trackers" not in word]
    options = ["--profile-io", "--profile-seconds", "0.1", f"models_root={tmp_path}"]
    succeed(*IN_TURN, "1", "train", *words, *options, **PATHS)
    figures = json.loads((tmp_path / "io-profile-network-Words" / "io_profile.json").read_text())
    assert list(figures["phases"]) == ["reader alone", "training, dummy items", "training, the set"]
    assert all(phase["ranks"][0]["images"] for phase in figures["phases"].values())
