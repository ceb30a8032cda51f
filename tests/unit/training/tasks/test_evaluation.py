"""The best point of an evaluation, its problems beside the baselines, and the settings that reach the data."""

from typing import NamedTuple

import numpy as np
import pytest

import default
from face_sets import jpeg, write_records
from own_items import Signals
from partial_fc.data.sources.dataset import DatasetItems
from partial_fc.data.transforms import Augmentation
from partial_fc.training.tasks import Evaluation, ItemPairs, PairVerification, Task, build_task, faces, task
from recorded_calls import recorded


class Loss(Evaluation):
    figures, higher_is_better = ("loss", "other"), False


class Rank1(Evaluation):
    figures = ("rank1",)


def points(evaluation, values):
    rest = (0.0,) * (len(evaluation.figures) - 1)
    return [evaluation.point_type(update, value, *rest, 1.0) for update, value in values.items()]


@pytest.mark.parametrize(
    "kind, values, best",
    [
        (Rank1, {0: 0.9, 5: 0.4, 10: 0.6, 15: 0.6}, 10),  # the untrained network, and the first of equal ones
        (Loss, {0: 0.1, 5: 0.4, 10: 0.3, 15: 0.6}, 10),
        (Rank1, {0: 0.9}, 0),
    ],
)
def test_the_best_point(kind, values, best):
    evaluation = kind()
    assert evaluation.best(points(evaluation, values)).num_update == best


@pytest.mark.parametrize(
    "kind, value, problems",
    [
        (Rank1, 0.7, []),
        (Rank1, 0.6, ["the rank1 0.6000 is not above that of raw pixels, 0.6000"]),
        (Rank1, float("nan"), ["the rank1 nan is not above that of raw pixels, 0.6000"]),
        (Loss, 0.5, []),
        (Loss, 0.7, ["the loss 0.7000 is not below that of raw pixels, 0.6000"]),
    ],
)
def test_problems_compare_with_baselines_except_the_untrained_network(kind, value, problems):
    evaluation = kind()
    (point,) = points(evaluation, {5: value})
    assert evaluation.problems(point, {"raw_pixels": 0.6, "untrained": 0.65}) == problems
    assert evaluation.problems(point, {}) == []


def test_pairs_are_examined_for_a_collapse_too():
    evaluation = PairVerification()
    point = evaluation.point_type(5, 0.55, 0.01, 1.5, 0.5, 1e-3, 10.0, 1.1, 0.9, 4.0)
    collapsed, lower = evaluation.problems(point, {"raw_pixels": 0.6})
    assert "different classes span 1.1 dimensions" in collapsed and "not above that of raw pixels" in lower


class Rank(NamedTuple):
    rank: int
    size: int


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_ranks_read_every_pair_once(size):
    pairs = ItemPairs([True] * 7, lambda start, stop: np.arange(start, stop))
    shares = [pairs.load("pairs", Rank(rank, size)) for rank in range(size)]
    parts = [share.read(*part) for share in shares for part in ((0, 2), (2, share.num_items))]
    assert np.concatenate(parts).tolist() == list(range(14)) and all(share.num_items % 2 == 0 for share in shares)


class OfSignals(Task):
    def items(self):
        return DatasetItems("own_items:Signals")


def test_every_setting_reaches_the_data(tmp_path, monkeypatch):
    of_faces, of_items = recorded(monkeypatch, faces, "FaceItems"), recorded(monkeypatch, task, "ItemBatches")
    rec = write_records(str(tmp_path), {key: (key % 4, key, 0, jpeg(key)) for key in range(24)})
    changes = {"rec": rec, "num_classes": 4, "batch_size": 3, "gradient_acc": 2, "image_size": 16, "seed": 7}
    changes |= {"shuffle": False, "skip_bad_images": 5, "min_images_per_class": 2, "cutout": 9}
    changes |= {
        "labels_per_item": 2,
        "rand_mirror": False,
        "color_jittering": 0.3,
        "jpeg_compression": 20,
        "resize": True,
        "val_targets": ["b", "a"],
    }
    for name in changes["val_targets"]:
        (tmp_path / f"{name}.bin").touch()
    settings = default.generate_config(changes={**changes, "max_update": 4, "lr_steps": []}, trainer="torch")
    common = {"labels_per_item": 2, "shuffle": False, "rank": 1, "size": 2, "seed": 7, "batch_size": 6}
    of_set = build_task(settings)
    of_set.batches(1, 2)
    augmentation = Augmentation(False, 9, 0.3, 20)
    faces_of = {"rec_path": rec, "image_size": (16, 16), "augmentation": augmentation, "min_images_per_class": 2}
    assert of_faces == [{**faces_of, "seed": 7, "resize": True}]
    assert of_items.pop().items() >= {**common, "skip_bad_items": 5}.items()
    measured = of_set.evaluations()
    assert {name: (each.path, each.image_size, each.mirrored, each.resize) for name, each in measured.items()} == {
        name: (f"{tmp_path}/{name}.bin", 16, False, True) for name in ("b", "a")
    }
    OfSignals(settings).batches(1, 2)
    (found,) = of_items
    assert len(found.pop("items")) == len(Signals()) and found == {**common, "skip_bad_items": 5}


def test_classes_are_left_out_by_the_labels_of_a_file(tmp_path):
    rec = write_records(str(tmp_path), {key: (key // 2, key, 0, jpeg(key)) for key in range(24)})
    np.save(tmp_path / "labels.npy", [0, 1, 1, 1, *[2] * 20])
    changes = {"rec": rec, "num_classes": 3, "batch_size": 4, "image_size": 16, "min_images_per_class": 3}
    changes |= {"labels": str(tmp_path / "labels.npy"), "max_update": 4, "lr_steps": [], "shuffle": False}
    batches = build_task(default.generate_config(changes=changes, trainer="torch")).batches(0, 1)
    assert batches.num_images == 23 and batches.batch(0, 0).labels.tolist() == [1, 1, 1, 2]
