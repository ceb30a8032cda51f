"""Trainings with a teacher from their settings: its files, its class centers, refusals, and an exact resume."""

import json
import logging
import shutil
from functools import partial

import numpy as np
import pytest
import torch

import default
from partial_fc.checkpoint import CheckpointFolder
from partial_fc.data.synthetic import DemoSize, write_demo
from partial_fc.distributed.errors import JobError
from partial_fc.export.item_model import ItemModel
from partial_fc.training.trainer import train
from partial_fc_torch.build import TorchFramework
from train import main

CLASSES = 10
SIZES = {"batch_size": 8, "num_classes": CLASSES, "embedding_size": 16, "lr_steps": [], "log_every": 1}
OWN = {"task": "own_task:Words", "network": "own_task:network", **SIZES, "num_classes": 30, "batch_size": 12}


def settings_of(folder, **changes):
    changes = {"output": str(folder), "max_update": 2, "trackers": "jsonl", **changes}
    return default.generate_config(changes=changes, trainer="torch")


@pytest.fixture(scope="module")
def faces(tmp_path_factory):
    """The settings of a training on faces."""
    root = tmp_path_factory.mktemp("set")
    write_demo(root, DemoSize(seed=1, identities=CLASSES, images_per_identity=4, held_out=20, pairs=40))
    return {"rec": str(root), "network": "small", **SIZES}


@pytest.fixture(scope="module")
def teacher(faces, tmp_path_factory):
    """The output folder of a training on faces."""
    folder = tmp_path_factory.mktemp("teacher") / "out"
    train(settings_of(folder, **faces, seed=5), TorchFramework())
    return folder


def losses_of(folder):
    """Returns the logged losses of a training by name."""
    curves = json.loads((folder / "curves.json").read_text())
    return {name: [loss for _, loss in points] for name, points in curves["head_losses"].items()}


def test_every_kind_of_file_gives_the_same_losses(faces, teacher, tmp_path, caplog):
    shutil.copy(teacher / "backbone.pth", tmp_path / "weights.pt")  # recognized by its layers
    with_centers = tmp_path / "with_centers"
    with_centers.mkdir()
    for name in ("backbone.onnx", "rank_0_softmax_weight.pt"):
        shutil.copy(teacher / name, with_centers)
    found = {}
    with caplog.at_level(logging.INFO):
        for number, path in enumerate((teacher, tmp_path / "weights.pt", teacher / "backbone.onnx", with_centers)):
            train(settings_of(tmp_path / str(number), **faces, teacher=str(path)), TorchFramework())
            found[path] = losses_of(tmp_path / str(number))
    first, *others = found.values()
    assert list(first) == ["softmax", "teacher"] and all(0 < loss < 2 for loss in first["teacher"])
    for other in others:
        for name, losses in first.items():
            np.testing.assert_allclose(other[name], losses, rtol=1e-3)
    assert any("Loss of softmax" in line and "Loss of teacher" in line for line in caplog.messages)
    total = json.loads((tmp_path / "0" / "curves.json").read_text())["losses"]
    expected = np.array(first["softmax"]) + 100 * np.array(first["teacher"])
    np.testing.assert_allclose([loss for _, loss in total], expected, rtol=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_frozen_centers_stay_as_the_teacher_has_them(faces, teacher, tmp_path, optimizer):
    changes = {"teacher": str(teacher), "center_optimizer": optimizer, "softmax_weight": 0}
    folders = tmp_path / "frozen", tmp_path / "initial"
    for folder in folders:
        train(settings_of(folder, **faces, **changes, teacher_centers=folder.name), TorchFramework())
    load = partial(torch.load, weights_only=True)
    first, frozen, initial = (load(folder / "rank_0_softmax_weight.pt") for folder in (teacher, *folders))
    assert torch.equal(first, frozen) and not torch.equal(first, initial)
    assert torch.cosine_similarity(first, initial).mean() > 0.9  # random centers: near 0


def test_a_training_resumes_to_the_same_bytes_with_a_teacher_of_the_users_network(tmp_path, caplog, monkeypatch):
    """The folder's ONNX file is used, because its network needs the user's code, and embeds a batch at a time."""
    sizes, embed = set(), ItemModel.embed
    monkeypatch.setattr(ItemModel, "embed", lambda *arguments: sizes.update(arguments[2:]) or embed(*arguments))
    train(settings_of(tmp_path / "teacher", **OWN, seed=5), TorchFramework())
    changes = {**OWN, "teacher": str(tmp_path / "teacher"), "teacher_centers": "initial"}
    np.save(tmp_path / "weights.npy", np.arange(1, 31))
    changes |= {"max_update": 6, "checkpoint_every": 3, "sample_ratio": 0.5, "sampling": f"{tmp_path}/weights.npy"}
    train(settings_of(tmp_path / "whole", **changes), TorchFramework())
    path = dict(CheckpointFolder(str(tmp_path / "whole" / "checkpoints"), 2).complete())[3]
    train(settings_of(tmp_path / "resumed", **changes, resume=path), TorchFramework())
    for name in ("backbone.pth", "backbone.onnx", "rank_0_softmax_weight.pt"):
        assert (tmp_path / "resumed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert losses_of(tmp_path / "resumed") == losses_of(tmp_path / "whole")
    assert 12 in sizes
    shutil.copy(tmp_path / "whole" / "backbone.onnx", tmp_path / "teacher")
    np.save(tmp_path / "weights.npy", np.ones(30))
    caplog.clear()
    with caplog.at_level(logging.INFO):
        train(settings_of(tmp_path / "changed", **changes, resume=path), TorchFramework())
    changed = [line.split(" was ")[0].strip() for line in caplog.messages if " was " in line]
    assert changed == ["setting output", "content of teacher", "weights of sampling"]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"teacher": "missing"}, "the teacher .*missing does not exist: set teacher"),
        ({"teacher": "empty"}, "empty holds no .onnx file"),
        ({"embedding_size": 32}, "have 16 numbers, this training's have 32: set embedding_size=16"),
        ({"image_size": 128}, r"cannot embed the items .*expected \(B, 3, 112, 112\)"),
        ({"image_size": 128, "teacher": "teacher.onnx"}, "cannot embed the items .*takes faces of"),
        ({"num_classes": 12, "teacher_centers": "initial"}, "it holds 10 classes, .* set num_classes=10"),
        ({"teacher": "alone.pth", "teacher_centers": "frozen"}, "has no class centers"),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused_before_anything_is_written(
    faces, teacher, tmp_path, monkeypatch, changes, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    shutil.copy(teacher / "backbone.pth", tmp_path / "alone.pth")
    shutil.copy(teacher / "backbone.onnx", tmp_path / "teacher.onnx")
    debug = {"debug": True} if "image_size" in changes else {}  # the images of the set are of 112 pixels
    with pytest.raises(JobError, match=message):
        train(settings_of(tmp_path / "out", **{**faces, "teacher": str(teacher), **debug, **changes}), TorchFramework())
    assert not list((tmp_path / "out").glob("[!.]*"))


def test_the_command_ends_with_code_2(faces, tmp_path, capsys):
    words = [f"{name}={value}" for name, value in faces.items() if name != "lr_steps"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "teacher_centers=frozen", f"output={tmp_path}/out"])
    assert ended.value.code == 2 and "there is no teacher: set teacher" in capsys.readouterr().err
