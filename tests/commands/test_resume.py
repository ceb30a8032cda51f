"""Resuming from a checkpoint through the user's own commands."""

import json
import sys

import numpy as np
import pytest

from partial_fc.checkpoint import CheckpointFolder, SavedClasses, read_manifest
from partial_fc.data.synthetic import DemoSize, write_demo

# Dropout draws in every step, r = 0.5 draws negatives, and the learning rate changes after update 5.
ARGUMENTS = ["sample_ratio=0.5", "net_output=E", "checkpoint_every=3", "baselines=False"]


def newest(models):
    ((update, path), *_) = CheckpointFolder(str(models / "small-arcface-demo" / "checkpoints"), 2).complete()
    return update, path, read_manifest(path)


@pytest.mark.slow
def test_a_resumed_training_ends_with_the_bytes_of_an_uninterrupted_one(run, settings, tmp_path):
    arguments = [*settings, *ARGUMENTS]
    for models, updates in (("uninterrupted", 7), ("parts", 4), ("parts", 7)):
        more = ["--resume", "auto"] if updates == 7 else []
        result = run("bash", "run.sh", *arguments, f"models_root={tmp_path / models}", f"max_update={updates}", *more)
        assert result.returncode == 0, result.stdout + result.stderr
    assert "resumes from update 4, saved by 2 ranks in" in result.stdout
    assert "setting max_update was 4, now it is 7" in result.stdout
    (update, _, expected), (_, path, found) = newest(tmp_path / "uninterrupted"), newest(tmp_path / "parts")
    assert update == 7
    assert found.files == expected.files  # sizes and SHA-256 of backbone, statistics, centers and momentum
    assert found.rank_states == expected.rank_states
    logs = [
        (tmp_path / models / "small-arcface-demo" / "training.log").read_text() for models in ("uninterrupted", "parts")
    ]
    losses = [[line.split("Loss ")[1].split()[0] for line in log.splitlines() if "Loss" in line] for log in logs]
    assert losses[1] == losses[0]
    summary = json.loads((tmp_path / "parts" / "small-arcface-demo" / "summary.json").read_text())
    assert summary["updates"] == 7

    # A refused training changes nothing, although it would resume from an older checkpoint.
    checkpoints = CheckpointFolder(str(tmp_path / "parts" / "small-arcface-demo" / "checkpoints"), 2)
    settings_file = tmp_path / "parts" / "small-arcface-demo" / "settings.json"
    before = checkpoints.complete(), settings_file.read_text()
    more = [f"models_root={tmp_path / 'parts'}", "momentum=0.0", "--resume", before[0][1][1]]
    result = run(sys.executable, "train_memory.py", *arguments, *more)
    assert result.returncode == 2 and "set momentum" in result.stderr, result.stdout + result.stderr
    assert (checkpoints.complete(), settings_file.read_text()) == before

    # With another number of ranks and batch size, from a path, into another folder.
    again = tmp_path / "again"
    more = ["--resume", path, f"models_root={again}", "max_update=9", "batch_size=4"]
    result = run("bash", "run.sh", *arguments, *more, NP="3")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "resumes from update 7, saved by 2 ranks in" in result.stdout
    assert (newest(again)[2].ranks, newest(again)[0]) == (3, 9)

    # With two new identities, one fewer, and the classes in another order.
    faces = tmp_path / "more_faces"
    write_demo(faces, DemoSize(seed=2, identities=21, images_per_identity=8, held_out=20, pairs=40))
    class_map = [-1, *range(19, 0, -1), -1]
    (tmp_path / "map.txt").write_text("".join(f"{number}\n" for number in class_map))
    grown = tmp_path / "grown"
    more = [f"rec={faces / 'train.rec'}", "num_classes=21", "--class-map", tmp_path / "map.txt"]
    result = run("bash", "run.sh", *arguments, *more, "--resume", path, f"models_root={grown}", "max_update=7")
    assert result.returncode == 0, result.stdout + result.stderr
    _, grown_path, manifest = newest(grown)
    before, after = SavedClasses.of_checkpoint(path, found), SavedClasses.of_checkpoint(grown_path, manifest)
    kept = [(new, old) for new, old in enumerate(class_map) if old >= 0]
    new, old = (list(numbers) for numbers in zip(*kept))
    for field in ("weight", "weight_mom"):
        np.testing.assert_array_equal(after.rows(field, np.array(new)), before.rows(field, np.array(old)))
    assert not after.rows("weight_mom", np.array([0, 20])).any()
