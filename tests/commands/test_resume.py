"""Resuming from a checkpoint through the user's own commands."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from groups import checkpoint_contents

from partial_fc.checkpoint import CheckpointFolder, SavedClasses, read_manifest
from partial_fc.data.synthetic import DemoSize, write_demo
from partial_fc.layer.initializer import expected_norm

# Dropout draws in every step, r = 0.5 draws negatives, and the learning rate changes after update 5.
ARGUMENTS = ["sample_ratio=0.5", "net_output=E", "checkpoint_every=4"]


def newest(models):
    ((update, path), *_) = CheckpointFolder(str(models / "small-arcface-demo" / "checkpoints"), 2).complete()
    return update, path, read_manifest(path)


@pytest.fixture
def arguments(settings):
    return [*settings, *ARGUMENTS]


@pytest.mark.slow
def test_a_resumed_training_ends_with_the_bytes_of_an_uninterrupted_one(run, succeed, arguments, tmp_path):
    whole, parts = (tmp_path / name / "small-arcface-demo" for name in ("uninterrupted", "parts"))
    for folder, more in ((whole, []), (parts, ["--resume", "auto"])):
        result = succeed("bash", "run.sh", *arguments, f"models_root={folder.parent}", *more)
        if folder == whole:
            (_, (_, path)) = CheckpointFolder(str(whole / "checkpoints"), 2).complete()
            shutil.copytree(path, parts / "checkpoints" / Path(path).name)
    assert "resumes from update 4, saved by 2 ranks in" in result.stdout
    (update, _, expected), (_, path, resumed) = newest(whole.parent), newest(parts.parent)
    assert update == 7
    assert resumed.files == expected.files  # sizes and SHA-256 of backbone, statistics, centers and momentum
    assert resumed.rank_states == expected.rank_states
    logs = [(folder / "training.log").read_text().splitlines() for folder in (whole, parts)]
    losses = [[line.split("Loss ")[1].split()[0] for line in log if "Loss" in line] for log in logs]
    assert len(losses[1]) == 2 and losses[1] == losses[0][2:]
    assert json.loads((parts / "summary.json").read_text())["updates"] == 7

    # A refused training changes nothing, although it would resume from an older checkpoint.
    checkpoints, settings_file = CheckpointFolder(str(parts / "checkpoints"), 2), parts / "settings.json"
    before = checkpoints.complete(), settings_file.read_text()
    more = [f"models_root={parts.parent}", "momentum=0.0", "--resume", before[0][1][1]]
    result = run(sys.executable, "train_memory.py", *arguments, *more)
    assert result.returncode == 2 and "set momentum" in result.stderr, result.stdout + result.stderr
    assert (checkpoints.complete(), settings_file.read_text()) == before


@pytest.mark.slow
def test_a_checkpoint_is_continued_on_three_ranks_and_on_one_with_other_classes(succeed, arguments, tmp_path):
    succeed("bash", "run.sh", *arguments, f"models_root={tmp_path / 'two'}")
    _, path, _ = newest(tmp_path / "two")
    # Three ranks read the checkpoint and save it in other shards.
    arrays, _ = checkpoint_contents(path)
    more = ["--resume", path, f"models_root={tmp_path / 'again'}", "batch_size=4"]
    result = succeed("bash", "run.sh", *arguments, *more, NP="3")
    assert "resumes from update 7, saved by 2 ranks in" in result.stdout
    update, path, resumed = newest(tmp_path / "again")
    assert (resumed.ranks, update) == (3, 7) and [stop - start for start, stop in resumed.shards] == [7, 7, 6]
    restored, _ = checkpoint_contents(path)
    assert restored.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(restored[name], array, err_msg=name)

    # On one rank, with two new identities, one fewer, and the classes in another order.
    faces = tmp_path / "more_faces"
    write_demo(faces, DemoSize(seed=2, identities=21, images_per_identity=8, held_out=20, pairs=40))
    class_map = [-1, *range(19, 0, -1), -1]
    (tmp_path / "map.txt").write_text("".join(f"{number}\n" for number in class_map))
    grown = tmp_path / "grown"
    more = [f"rec={faces / 'train.rec'}", "num_classes=21", "--class-map", tmp_path / "map.txt"]
    more += ["--resume", path, f"models_root={grown}", "new_centers=mean"]
    result = succeed(sys.executable, "train_memory.py", *arguments, *more)
    _, grown_path, manifest = newest(grown)
    before, after = SavedClasses.of_checkpoint(path, resumed), SavedClasses.of_checkpoint(grown_path, manifest)
    kept = [(new, old) for new, old in enumerate(class_map) if old >= 0]
    new, old = (list(numbers) for numbers in zip(*kept))
    for field in ("weight", "weight_mom"):
        np.testing.assert_array_equal(after.rows(field, np.array(new)), before.rows(field, np.array(old)))
    assert not after.rows("weight_mom", np.array([0, 20])).any()
    norms = np.linalg.norm(after.rows("weight", np.array([0, 20])), axis=1)
    np.testing.assert_allclose(norms, expected_norm(resumed.embedding_size), rtol=1e-6)  # of mean embeddings
