"""A user's task with dicts of letters and lengths as items: trained, verified, resumed and exported like faces."""

import json
import logging
import shlex
from functools import partial

import numpy as np
import onnxruntime
import pytest
import torch

import default
import own_task
from partial_fc.checkpoint import CheckpointFolder
from partial_fc.data.item_batches import ArrayItems, ItemBatches
from partial_fc.distributed.errors import JobError
from partial_fc.export.model import FaceModel
from partial_fc.export.parity import random_faces
from partial_fc.training.tasks import Task, build_task
from partial_fc.training.trainer import train
from partial_fc.utils.config import Setting, SettingsError
from partial_fc_tools.__main__ import main
from partial_fc_torch import get_model
from partial_fc_torch.build import TorchFramework
from partial_fc_torch.pixels import normalized

SIZES = {"num_classes": 30, "embedding_size": 16, "batch_size": 12, "max_update": 24, "lr_steps": []}
EVERY = {"verify_every": 12, "checkpoint_every": 12, "log_every": 6}
OWN = {"task": "own_task:Words", "network": "own_task:network", "trackers": "jsonl", "baselines": True}


def settings_of(folder, **changes):
    changes = {**SIZES, **EVERY, **OWN, "output": str(folder), **changes}
    return default.generate_config(changes=changes, trainer="torch")


def weights(folder):
    return torch.load(folder / "backbone.pth", weights_only=True)


def test_it_is_trained_verified_exported_and_resumed_to_the_same_bytes(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        train(settings_of(tmp_path / "whole", ema_decay=0.9), TorchFramework())
    summary = json.loads((tmp_path / "whole" / "summary.json").read_text())
    assert list(summary["verification"]) == ["pairs", "spellings", "pairs_ema", "spellings_ema"]
    assert set(summary["baselines"]) == {"untrained"}  # of the first set
    assert "spellings" in (tmp_path / "whole" / "report.html").read_text()
    tracked = (tmp_path / "whole" / "metrics.jsonl").read_text()
    assert "verification/spellings/rank1" in tracked

    first, second = tmp_path / "whole" / "checkpoints", tmp_path / "resumed"
    path = dict(CheckpointFolder(str(first), 2).complete())[12]
    train(settings_of(second, ema_decay=0.9, resume=path), TorchFramework())
    for name in ("backbone.pth", "backbone.onnx", "backbone_ema.onnx", "rank_0_softmax_weight.pt"):
        assert (second / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    compared = tmp_path / "comparison.html"
    assert main(["report", "compare", str(tmp_path / "whole"), str(second), "--out", str(compared)]) == 0
    assert "rank1 on spellings" in compared.read_text() and "spellings: distance" in compared.read_text()
    suggested, _ = (record.message for record in caplog.records if "report card" in record.message)
    card = shlex.split(suggested.partition("partial-fc ")[2])
    assert main(card) == 0
    text = (tmp_path / "whole" / "card.md").read_text()
    assert f"| spellings | 24 | rank1 | {summary['verification']['spellings']:.4f} |" in text and "letters" in text
    for refused in ([*card, "--groups", "groups.csv", "--force"], ["verify", str(tmp_path / "whole"), "pairs.bin"]):
        assert main(refused) == 2


def test_the_onnx_file_has_an_input_for_each_name_and_gives_the_embeddings(tmp_path):
    train(settings_of(tmp_path, max_update=6, verify_every=100, baselines=False), TorchFramework())
    session = onnxruntime.InferenceSession(str(tmp_path / "backbone.onnx"))
    assert sorted(each.name for each in session.get_inputs()) == ["length", "letters"]
    model = get_model("own_task:network", num_features=16, image_size=None, letters=own_task.LETTERS).eval()
    model.load_state_dict(torch.load(tmp_path / "backbone.pth", weights_only=True))
    inputs, _ = own_task.words(7, seed=5)
    with torch.no_grad():
        expected = model({name: torch.from_numpy(array) for name, array in inputs.items()}).numpy()
    np.testing.assert_allclose(session.run(None, inputs)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("changes", [{"gradient_acc": 3}, {"debug": True}, {"bf16": True}])
def test_it_trains_with_options_of_the_trainer(tmp_path, changes, caplog):
    train(settings_of(tmp_path, max_update=4, baselines=False, **changes), TorchFramework())
    assert (tmp_path / "report.html").exists() and (tmp_path / "backbone.onnx").exists()
    assert "computes other embeddings" not in caplog.text


def test_a_dataset_is_trained_on_by_name_with_threads_or_processes(tmp_path):
    """The bytes are the same, even with a bad item and after resuming with the other kind."""
    changes = {"task": "items", "rec": "own_items:SomeBad", "network": "own_items:network", "num_classes": 10}
    changes |= {"baselines": False, "max_update": 6, "checkpoint_every": 3, "skip_bad_images": 1}
    for processes in (0, 2):
        folder = tmp_path / f"{processes}-processes"
        train(settings_of(folder, decode_processes=processes, **changes), TorchFramework())
        assert json.loads((folder / "summary.json").read_text())["skipped_images"] == 1
    path = dict(CheckpointFolder(str(folder / "checkpoints"), 2).complete())[3]
    train(settings_of(tmp_path / "resumed", decode_threads=1, resume=path, **changes), TorchFramework())
    for name in ("backbone.pth", "backbone.onnx", "rank_0_softmax_weight.pt"):
        assert len({(each / name).read_bytes() for each in tmp_path.iterdir()}) == 1, name
    for rec in ("data/glyphs", "hf:glyphs"):  # the latter names a set, no module
        with pytest.raises(ValueError, match=f"task=items trains on a map-style Dataset, but rec is .*{rec}"):
            build_task(settings_of(tmp_path, **{**changes, "rec": rec})).prepare("")


def test_reading_all_labels_of_a_dataset_is_logged(tmp_path, capfd):
    changes = {"task": "items", "rec": "own_items:Untold", "network": "own_items:network", "num_classes": 10}
    train(settings_of(tmp_path, max_update=1, baselines=False, **changes), TorchFramework())
    assert capfd.readouterr().out.count("own_items:Untold has no targets: reading ") == 1


def test_its_settings_are_checked():
    make = partial(settings_of, "out")
    assert build_task(make(task_options="classes=40")).classes == 40
    for options, message in (
        ("classes=1", "at least 2"),
        ("clases=40", "did you mean 'classes'"),
        ("classes=a", "int"),
    ):
        with pytest.raises(SettingsError, match=message):
            build_task(make(task_options=options))
    with pytest.raises(ValueError, match="own_task has no Absent"):
        build_task(make(task="own_task:Absent"))
    for other in ("json:dumps", "builtins:list"):
        with pytest.raises(ValueError, match=f"task is '{other}', which is .*: name a subclass of"):
            build_task(make(task=other))
    with pytest.raises(SettingsError, match="unknown task 'face': did you mean 'faces'"):
        make(task="face")
    for option, message in (("metric=map", "did you mean 'metrics'"), ("metrics=maps", "did you mean 'map'")):
        with pytest.raises(SettingsError, match=message):
            build_task(make(task="items", rec="own_items:SomeBad", task_options=option))


def test_a_dataset_of_any_items_takes_no_settings_of_images():
    changes = {"task": "items", "rec": "own_items:SomeBad"}
    for name, value in (("cutout", 8), ("min_images_per_class", 2)):
        with pytest.raises(SettingsError, match=f"task_options: unknown setting '{name}'"):
            build_task(settings_of("out", **changes, **{name: value}))
    assert settings_of("out", dataset="emore", **changes).val_targets  # of the preset
    with pytest.raises(SettingsError, match="val_targets has lfw, but with task=items it must be"):
        settings_of("out", **changes, val_targets=["lfw"])


def test_metrics_of_datasets_are_measured_by_name(tmp_path):
    changes = {"task": "items", "rec": "own_items:Signals", "network": "own_items:network", "num_classes": 10}
    changes |= {"val_targets": ["own_items:Signals"], "task_options": "metrics=(map,eer)", "max_update": 12}
    train(settings_of(tmp_path, **changes), TorchFramework())
    points = json.loads((tmp_path / "summary.json").read_text())
    assert set(points["verification"]) == {"own_items.Signals"} and "untrained" in points["baselines"]
    tracked = (tmp_path / "metrics.jsonl").read_text()
    assert "verification/own_items.Signals/map_at_r" in tracked and "verification/own_items.Signals/eer" in tracked
    with pytest.raises(JobError, match="val_targets is 'own_items:Absent', but own_items has no Absent"):
        train(settings_of(tmp_path / "2", **{**changes, "val_targets": ["own_items:Absent"]}), TorchFramework())


def test_a_network_of_images_is_refused(tmp_path):
    with pytest.raises(JobError, match="'small', which takes images"):
        train(settings_of(tmp_path, network="small"), TorchFramework())


class Pixels(Task):
    pixels = True
    options = (Setting("shape", "3x32x32", "of an item"), Setting("dtype", "uint8", "of its numbers"))

    def items(self):
        shape = tuple(int(length) for length in self.shape.split("x"))
        return ArrayItems(np.ones((60, *shape), self.dtype), np.arange(60) % 30)


class OwnBatches(Pixels):
    def batches(self, rank, size):
        return ItemBatches(self.items(), self.settings.batch_size, True, rank, size)


@pytest.mark.parametrize("changes", [{}, {"debug": True}, {"task": f"{__name__}:OwnBatches"}], ids=repr)
@pytest.mark.parametrize("form", ["dtype=float32", "shape=32x32x3", "shape=3x48x48", "shape=9x1"])
def test_pixels_of_another_shape_or_type_are_refused(tmp_path, form, changes):
    changes = {"task": f"{__name__}:Pixels", "image_size": 32, "network": "small", "task_options": form, **changes}
    with pytest.raises(JobError, match=r"expected one array, uint8 \(3, 32, 32\)"):
        train(settings_of(tmp_path / "out", **changes), TorchFramework())
    assert not (tmp_path / "out").exists()


def test_a_task_of_pixels_trains_networks_of_images(tmp_path):
    sizes = {"image_size": 32, "max_update": 2, "baselines": False}
    train(settings_of(tmp_path, task=f"{__name__}:Pixels", network="small", **sizes), TorchFramework())
    model = get_model("small", num_features=16, image_size=32).eval()
    assert not all(map(torch.equal, model.state_dict().values(), weights(tmp_path).values()))
    model.load_state_dict(weights(tmp_path))
    faces = random_faces((32, 32), 2)
    with torch.no_grad():
        expected = model(normalized(torch.from_numpy(faces).permute(0, 3, 1, 2))).numpy()
    np.testing.assert_allclose(FaceModel.open(tmp_path).embed(faces), expected, rtol=1e-3, atol=1e-4)
