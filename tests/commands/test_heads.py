"""Trainings with several heads through the user's command: resuming, other ranks, a killed rank, the report."""

import json
import shutil

import numpy as np
import pytest
from conftest import CLASSES, needs_torch
from groups import TWO_RANKS, checkpoint_contents, checkpoints_in, run_with_fault

from partial_fc.checkpoint import SavedClasses
from partial_fc.data.synthetic import DemoSize, write_demo

pytestmark = [needs_torch, pytest.mark.slow]
OTHERS = 14  # classes of the second set


@pytest.fixture(scope="session")
def heads(faces):
    """Path of a file with two heads, whose sets are beside it; items of the second have up to two labels."""
    folder = faces.parent.parent
    write_demo(folder / "others", DemoSize(seed=2, identities=OTHERS, images_per_identity=6, held_out=20, pairs=40))
    labels = np.repeat(np.arange(OTHERS), 6)
    np.save(folder / "labels.npy", np.stack([labels, np.where(labels % 3, -1, (labels + 1) % OTHERS)], axis=1))
    first = {"name": "faces", "rec": "faces", "num_classes": CLASSES, "sample_ratio": 0.5}
    second = {"name": "others", "rec": "others", "num_classes": OTHERS, "loss": "adaface"}
    second |= {"labels": "labels.npy", "objective": "softmax_shared"}
    path = folder / "heads.json"
    path.write_text(json.dumps({"heads": [first, {**second, "weight": 0.5, "batch_size": 4}]}))
    return path


@pytest.fixture
def arguments(settings, heads):
    """Arguments of a training of 7 updates; the second set has two epochs in it."""
    own = ("rec=", "models_root=", "num_classes=")
    kept = [word for word in settings if not word.startswith(own)]
    return [*kept, f"heads={heads}", "embedding_size=16", "checkpoint_every=4"]


def checkpoint(output, update):
    return output / "checkpoints" / f"step-{update:010}"


def contents(path):
    """Returns all arrays of a checkpoint and its manifest."""
    arrays, manifest = checkpoint_contents(path)
    classes = SavedClasses.of_checkpoint(path, manifest, "others")
    of_head = {f"others.{field}": classes.rows(field, np.arange(OTHERS)) for field in classes.widths}
    return {**arrays, **of_head}, manifest


def test_a_training_with_heads_resumes_on_any_number_of_ranks(succeed, arguments, heads, tmp_path):
    whole, parts, three = (tmp_path / name for name in ("whole", "parts", "three"))
    result = succeed(*TWO_RANKS, *arguments, f"output={whole}")
    assert "head others: weight 0.5, " in result.stdout and "Loss of others " in result.stdout
    resume = ["--resume", checkpoint(whole, 4)]
    succeed(*TWO_RANKS, *arguments, f"output={parts}", *resume)
    expected, manifest = contents(checkpoint(whole, 7))
    resumed = contents(checkpoint(parts, 7))[1]
    assert resumed.files == manifest.files and resumed.rank_states == manifest.rank_states
    assert resumed.state["data"] == manifest.state["data"]
    assert manifest.state["data"]["heads"]["others"]["epoch"] == 0 < manifest.state["data"]["heads"]["others"]["images"]

    # On three ranks, which read the checkpoint and save it in other shards.
    resume = ["--resume", checkpoint(whole, 7)]
    succeed(*TWO_RANKS[:-2], "3", "train", *arguments, f"output={three}", *resume)
    arrays, resumed = contents(checkpoint(three, 7))
    assert [stop - start for start, stop in resumed.of_head("others").shards] == [5, 5, 4]
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)

    curves = json.loads((whole / "curves.json").read_text())
    (updates, losses), (_, others) = (np.array(curves["head_losses"][name]).T for name in ("faces", "others"))
    np.testing.assert_allclose(losses + 0.5 * others, [loss for _, loss in curves["losses"]], rtol=1e-5)
    assert updates.tolist() == [2, 4, 6, 7]
    page = (whole / "report.html").read_text()
    assert "Parts of the loss" in page and "loss adaface" in page
    assert list((whole / "heads" / "others").glob("rank_1_softmax_weight.pt"))
    assert len(list(whole.rglob("*.onnx"))) == 1

    # The settings of the training start it again, whatever happens to the file.
    again, (copy,) = tmp_path / "again", (whole / "heads").glob("*.json")
    saved = json.loads((whole / "settings.json").read_text())["heads"]
    assert saved == str(copy) and copy.name == "heads.json"  # as the user's
    heads.rename(tmp_path / "moved")
    succeed(*TWO_RANKS, "--config", whole / "settings.json", f"output={again}")
    (tmp_path / "moved").rename(heads)
    assert contents(checkpoint(again, 7))[1].files == manifest.files
    entries = [json.loads(path.read_text()) for path in (copy, again / "heads" / "heads.json")]
    assert entries[0] == entries[1] and entries[0]["heads"][1]["rec"] == str(heads.parent / "others" / "train.rec")


def test_a_killed_training_continues_bit_for_bit(succeed, arguments, tmp_path):
    whole, models, arguments = tmp_path / "whole", tmp_path / "models", [*arguments, "max_update=9"]
    succeed(*TWO_RANKS, *arguments, f"output={whole}")
    arguments = [*arguments, f"models_root={models}"]
    outcome = run_with_fault("torchrun", "kill", 1, "save.copy", arguments, tmp_path / "mark")
    assert outcome.code and not outcome.left, outcome.output
    assert checkpoints_in(models) == [4]
    succeed(*TWO_RANKS, *arguments, "--resume", "auto")
    (folder,) = models.iterdir()
    assert contents(checkpoint(folder, 9))[1].files == contents(checkpoint(whole, 9))[1].files


def test_a_set_that_is_missing_is_refused_at_the_start(run, arguments, heads, tmp_path):
    (tmp_path / "faces").symlink_to(heads.parent / "faces")
    shutil.copy(heads, tmp_path / "heads.json")  # beside only one of the sets
    arguments = [word for word in arguments if not word.startswith("heads=")]
    result = run(*TWO_RANKS, *arguments, f"heads={tmp_path}/heads.json", f"output={tmp_path}/out", "follow_links=True")
    assert result.returncode == 2 and f"head others: {tmp_path}/others" in result.stderr, result.stdout + result.stderr
    assert not (tmp_path / "out").exists()
