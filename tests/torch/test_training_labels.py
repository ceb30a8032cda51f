"""Trainings on the labels of a file: drawn anew in every epoch, resumed to the same bytes, checked before the start."""

import json
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import default
from checkpoint_cases import equal
from own_items import CLASSES, N, Signals
from partial_fc.checkpoint import CheckpointFolder
from partial_fc.checkpoint.arrays import read_arrays
from partial_fc.data.item_batches import ItemBatches
from partial_fc.data.sources.dataset import DatasetItems
from partial_fc.distributed.errors import JobError
from partial_fc.settings import declarations
from partial_fc.training.building import build_data, open_share
from partial_fc.training.tasks import Task, build_task
from partial_fc.training.tasks.items import DatasetTask
from partial_fc.training.trainer import train
from partial_fc.utils.config import Setting
from partial_fc_torch.build import TorchFramework
from partial_fc_torch.layer.objectives import OBJECTIVES
from train import TorchTraining

SETTINGS = {"task": "items", "rec": "own_items:Signals", "network": "own_items:network", "num_classes": CLASSES}
SETTINGS |= {"embedding_size": 16, "batch_size": 8, "max_update": 14, "lr_steps": [], "trackers": "jsonl"}
FILES = ("backbone.pth", "backbone.onnx", "rank_0_softmax_weight.pt")


class Shifted(Signals):
    """The signals with the labels that the tests write into a file."""

    targets = (np.arange(N) + 3) % CLASSES

    def __getitem__(self, position):
        return Signals()[position][0], self.targets[position]


def halved(negatives, targets, cosines, present, by):
    """Half of the loss of mlcd."""
    missing = torch.where(present, -targets, -torch.inf).logsumexp(dim=1)
    return (torch.nn.functional.softplus(negatives) + torch.nn.functional.softplus(missing)) / by


def settings_of(folder, **changes):
    return default.generate_config(changes={**SETTINGS, "output": str(folder), **changes}, trainer="torch")


def saved(tmp_path, labels, name="labels.npy"):
    np.save(tmp_path / name, labels)
    return str(tmp_path / name)


def several():
    """Up to five labels of each item; the last ten items have none."""
    labels = np.random.default_rng(0).permuted(np.tile(np.arange(-1, CLASSES), (N, 1)), axis=1)[:, :5]
    labels[-10:] = -1
    return labels


def same(*folders):
    for name in FILES:
        assert len({(folder / name).read_bytes() for folder in folders}) == 1, name


def test_labels_of_a_file_train_like_those_of_a_set(tmp_path):
    labels = saved(tmp_path, Shifted.targets.astype(np.uint16))
    train(settings_of(tmp_path / "file", labels=labels), TorchFramework())
    train(settings_of(tmp_path / "set", rec=f"{__name__}:Shifted"), TorchFramework())
    same(tmp_path / "file", tmp_path / "set")
    assert json.loads((tmp_path / "file" / "settings.json").read_text())["labels"] == labels


def test_the_objectives_of_the_settings_are_those_of_the_layer():
    assert set(declarations.OBJECTIVES) == set(OBJECTIVES)


@pytest.mark.parametrize(
    "drawn, objective, options",
    [(1, "softmax", ""), (2, "softmax_shared", ""), (3, "uniface", "weight=0.5"), (4, f"{__name__}:halved", "by=2.0")],
)
def test_a_training_with_drawn_labels_is_resumed_to_the_same_bytes(drawn, objective, options, tmp_path, caplog):
    """Also with the other kind of reader, in the middle of an epoch of five updates."""
    labels = several()
    changes = {"labels": saved(tmp_path, labels), "labels_per_item": drawn, "checkpoint_every": 7}
    changes |= {"objective": objective, "objective_options": options, "sample_ratio": 0.5}
    train(settings_of(tmp_path / "whole", **changes), TorchFramework())
    path = dict(CheckpointFolder(str(tmp_path / "whole" / "checkpoints"), 2).complete())[7]
    train(settings_of(tmp_path / "resumed", resume=path, decode_processes=1, **changes), TorchFramework())
    same(tmp_path / "whole", tmp_path / "resumed")
    assert "starts anew" not in caplog.text
    other = {**changes, "objective": "bce", "objective_options": "", "resume": path, "max_update": 8}
    train(settings_of(tmp_path / "other", **other), TorchFramework())
    assert "the checkpoint has no state of BCE (bias), but none: the objective starts anew" in caplog.text
    train(
        settings_of(tmp_path / "first", **{**changes, "labels": saved(tmp_path, labels[:, :drawn], "first.npy")}),
        TorchFramework(),
    )
    assert (tmp_path / "first" / FILES[0]).read_bytes() != (tmp_path / "whole" / FILES[0]).read_bytes()
    other = saved(tmp_path, labels[::-1], "other.npy")
    with pytest.raises(JobError, match="the position in the data was saved with data_set="):
        train(settings_of(tmp_path / "other", **{**changes, "labels": other, "resume": path}), TorchFramework())


@pytest.mark.parametrize(
    "labels, changes, message",
    [
        (np.zeros(3, int), {}, "labels.npy has labels of 3 items, but the set has 40"),
        (np.full(N, CLASSES), {}, r"labels.npy: own_items:Signals\[0\] has the label 10, expected -1 .*num_classes"),
        (np.zeros((N, 2), int), {"labels_per_item": 3}, "labels_per_item is 3, but the items of the set have 2 labels"),
        (None, {"labels_per_item": 2}, "labels_per_item is 2, but the items of the set have 1 label:"),
        (None, {"labels": "missing.npy"}, "missing.npy"),
        (
            None,
            {"objective": "mlcd", "objective_options": "by=2"},
            "objective is 'mlcd', but cannot be .*by",
        ),
    ],
)
def test_what_does_not_fit_the_set_is_refused_before_the_training(labels, changes, message, tmp_path):
    changes = changes if labels is None else {"labels": saved(tmp_path, labels), **changes}
    with pytest.raises(JobError, match=message):
        train(settings_of(tmp_path / "run", **changes), TorchFramework())
    assert not (tmp_path / "run" / "backbone.pth").exists()


class OwnEngine(TorchFramework):
    """Keeps its engine."""

    def build_engine(self, *arguments):
        self.engine = super().build_engine(*arguments)
        return self.engine


def train_heads(folder, framework=None, **changes):
    settings = settings_of(folder, **changes)
    train(settings, framework or TorchFramework(), heads=default.heads_of(settings))


@pytest.mark.parametrize("name, values", [("labels", Signals.targets), ("sampling", np.ones(CLASSES))])
def test_a_file_that_a_training_reads_is_not_moved_with_an_earlier_training(name, values, tmp_path):
    output, short = tmp_path / "out", {"max_update": 1, "sample_ratio": 0.5}
    train(settings_of(output, **short), TorchFramework())
    path = saved(output, values, f"{name}.npy")
    with pytest.raises(JobError, match=f"{name}.npy is in the output folder, but .* would be moved"):
        train(settings_of(output, **short, **{name: path}), TorchFramework())
    train(settings_of(output, **short), TorchFramework())  # reads no such file
    assert list(output.glob(f"earlier-*/{name}.npy"))


def test_every_head_has_labels_an_objective_a_margin_and_sub_centers_of_its_own(tmp_path):
    first = {"name": "first", "loss": "adaface", "margin_options": "m=[[1,0.0],[3,0.4]]"}
    second = {"name": "second", "labels": "labels.npy", "labels_per_item": 3, "margin_options": "m2=[0.0,0.1,0.3]"}
    second |= {"objective": "uniface", "objective_options": "weight=0.5", "layer_options": "sub_centers=2"}
    (tmp_path / "heads.json").write_text(json.dumps([first, second]))
    labels = several()
    saved(tmp_path, labels)
    changes = {"heads": str(tmp_path / "heads.json"), "checkpoint_every": 7, "log_every": 1}
    whole = OwnEngine()
    train_heads(tmp_path / "whole", whole, **changes)
    one, two = (head.layer for head in whole.engine.heads)
    assert (one.sub_centers, two.sub_centers) == (1, 2)
    assert (type(one.objective).__name__, type(two.objective).__name__) == ("Softmax", "UniFace")
    assert two.objective.weight == 0.5 and (one.margin.m, two.margin.margins[1]) == (0.4, 0.3)
    figures = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    shown = {each["num_update"]: each for each in figures if "margin_m.first" in each}
    assert shown[6]["margin_m.first"] == pytest.approx(0.2) and shown[6]["margin_m2.second"] == 0.1

    path = dict(CheckpointFolder(str(tmp_path / "whole" / "checkpoints"), 2).complete())[7]
    states = {name for name in read_arrays(f"{path}/backbone.npz") if "margin:" in name or "objective:" in name}
    assert states == {"margin:norm_mean", "margin:norm_std", "second.objective:UniFace.bias"}
    resumed = OwnEngine()
    train_heads(tmp_path / "resumed", resumed, resume=path, **changes)
    same(tmp_path / "whole", tmp_path / "resumed")
    equal(resumed.engine.parameters(), whole.engine.parameters())
    np.testing.assert_array_equal(resumed.engine.heads[1].layer.weight, two.weight)

    (tmp_path / "heads.json").write_text(json.dumps([first, {**second, "layer_options": ""}]))
    refusal = "head second: its classes have 2 centers each, .* set layer_options=sub_centers=2"
    with pytest.raises(JobError, match=refusal):
        train_heads(tmp_path / "one", resume=path, **changes)
    (tmp_path / "heads.json").write_text(json.dumps([first, second]))
    saved(tmp_path, labels[::-1])
    with pytest.raises(JobError, match="the position in the data was saved with data_set="):
        train_heads(tmp_path / "other", resume=path, **changes)


class Counted(DatasetTask):
    """Counts the blocks of labels that are read, and the sets that are closed."""

    closed = 0

    def items(self):
        items = super().items()
        items.close = self.close
        return items

    @classmethod
    def close(cls):
        cls.closed += 1


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"labels_per_item": 9}, "labels_per_item is 9, but"),
        ({"batch_size": 64}, "batch_size 64 on 1 rank needs"),
        ({"labels": "missing.npy"}, ".*missing.npy"),
        ({"labels": "labels.npy", "num_classes": 3}, ".*has the label"),
        ({"margin": f"{__name__}:halved"}, "the margin"),
    ],
)
def test_an_error_of_a_head_names_it_and_closes_earlier_sets(changes, message, tmp_path):
    (tmp_path / "heads.json").write_text(json.dumps([{"name": "first"}, {"name": "second", **changes}]))
    saved(tmp_path, several())
    Counted.closed = 0
    own = {"heads": str(tmp_path / "heads.json"), "task": f"{__name__}:Counted", "output": str(tmp_path / "run")}
    settings = default.generate_config(changes={**SETTINGS, **own}, trainer="torch", trust_code=True)
    with pytest.raises(JobError, match=f"head second: {message}"):
        train(settings, TorchFramework(), heads=default.heads)
    assert Counted.closed == 1 + ("margin" in changes)


def test_processes_take_what_was_found_in_the_labels(tmp_path, monkeypatch):
    """A rank reports its progress for each block; its processes read the labels of batches alone."""
    monkeypatch.setattr("partial_fc.data.label_file.BLOCK", 100)
    labels = several()
    labels[:, -1] = labels[:, 0]
    changes = {
        "labels": saved(tmp_path, labels),
        "task": f"{__name__}:FewLabels",
        "task_options": "min_images_per_class=14",
    }
    task = build_task(settings_of(tmp_path / "run", **changes))
    reports = []
    monkeypatch.setattr(type(TorchFramework.collectives), "report_progress", lambda self: reports.append(1))
    data = build_data(task.settings, task, TorchFramework())
    batches = data.batches
    assert len(reports) == 4 and 0 < batches.num_images < N  # two blocks, read twice
    monkeypatch.setattr("partial_fc.data.label_file.FileLabels._blocks", None)
    share = open_share(task.settings, 0, 1, pickle.loads(pickle.dumps(task.label_facts)))
    assert share.order == batches.order and share.num_classes == batches.num_classes
    for read, expected in zip(share.batch(0, 8), batches.batch(0, 8)):
        np.testing.assert_equal(read, expected)
    other = task.label_facts._replace(digest_of_set="of another set")
    with pytest.raises(TypeError):  # reads the labels again
        open_share(task.settings, 0, 1, other)
    data.close()


class FewLabels(DatasetTask):
    """Leaves out classes with few items."""

    options = (Setting("min_images_per_class", 0, ""),)


def test_an_error_in_a_margin_names_the_head(tmp_path):
    second = {"name": "second", "loss": "magface", "margin_options": "l_m=[0.1,1.5]"}
    (tmp_path / "heads.json").write_text(json.dumps([{"name": "first"}, second]))
    settings = settings_of(tmp_path / "run", heads=str(tmp_path / "heads.json"))
    with pytest.raises(ValueError, match="^head second: .*1.5"):
        TorchTraining().load_framework(settings)


class OwnBatches(Task):
    """Has batches that do not read the settings of labels."""

    def batches(self, rank, size):
        batches = ItemBatches(DatasetItems(Signals()), 8)
        names = (
            "num_images",
            "batch_size",
            "size",
            "log",
            "digest",
            "order",
            "batch",
            "sample",
            "check_labels",
            "close",
        )
        return SimpleNamespace(**{name: getattr(batches, name) for name in names})


def test_a_task_with_batches_of_its_own_refuses_labels(tmp_path):
    changes = {"task": f"{__name__}:OwnBatches", "max_update": 1, "labels": saved(tmp_path, np.zeros(N, int))}
    with pytest.raises(JobError, match="OwnBatches reads batches of its own, which do not take labels: remove it"):
        train(settings_of(tmp_path / "run", **changes), TorchFramework())
    train(settings_of(tmp_path / "run", **{**changes, "labels": ""}), TorchFramework())


def test_dummies_have_as_many_labels(tmp_path):
    train(settings_of(tmp_path, debug=True, labels_per_item=2, max_update=2), TorchFramework())
    assert (tmp_path / "backbone.pth").exists()
