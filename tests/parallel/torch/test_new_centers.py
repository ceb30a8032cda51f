"""Centers of new classes are the mean embeddings of their images, compared with NumPy."""

import logging
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from torch import nn
from torch_layer import RANK, SIZE, E, all_ranks
from torch_training import build_engine

from face_sets import face_batches
from partial_fc.data.face_records import write_face_set
from partial_fc.data.item_batches import ArrayItems, ItemBatches
from partial_fc.distributed.errors import JobError
from partial_fc.training import new_centers
from partial_fc.training.new_centers import take_new_centers
from partial_fc_torch.batches import tensor_data
from partial_fc_torch.collectives import default_collectives
from partial_fc_torch.layer.stores import CenterStore, HostStore
from verification_cases import SIDE, draw_images

COUNTS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]  # images of each class
CLASSES = len(COUNTS) + 1  # the last class has no image
BATCH = 2
SETTINGS = SimpleNamespace(new_centers="mean", num_classes=CLASSES, batch_size=BATCH)


def backbone():
    torch.manual_seed(2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, E), nn.BatchNorm1d(E), nn.Dropout(0.5))
    nn.init.normal_(model[2].bias)
    return model


def build(**arguments):
    """Returns an engine whose running mean differs between ranks; the average is 0."""
    engine = build_engine(backbone(), CLASSES, **arguments)
    engine.backbone[2].running_mean += RANK - (SIZE - 1) / 2
    return engine


def write(folder, damaged=()):
    """Writes a set, and returns its readable images by class."""
    images = np.split(draw_images(sum(COUNTS)), np.cumsum(COUNTS)[:-1])
    encoded = [[cv2.imencode(".png", image[:, :, ::-1])[1].tobytes() for image in of_class] for of_class in images]
    for label, number in damaged:
        encoded[label][number] = encoded[label][number][:60]
    default_collectives.on_rank_zero("write", write_face_set, folder, encoded, (SIDE, SIDE))
    return [
        [image for number, image in enumerate(of_class) if (label, number) not in damaged]
        for label, of_class in enumerate(images)
    ]


def data_of(folder, **arguments):
    faces = face_batches(f"{folder}/train.rec", BATCH, (SIDE, SIDE), rank=RANK, size=SIZE, seed=1, **arguments)
    return tensor_data(faces, threads=2, pinned=False)


def mean_direction(images):
    """Returns the direction (E,) of a class, computed from the parameters in float64."""
    state = {name: value.double().numpy() for name, value in backbone().state_dict().items()}
    pixels = (np.stack(images).astype(np.float64) / 255 - 0.5) / 0.5
    features = pixels.transpose(0, 3, 1, 2).reshape(len(images), -1) @ state["1.weight"].T + state["1.bias"]
    features = features / np.sqrt(1 + 1e-5) * state["2.weight"] + state["2.bias"]
    total = np.sum(features / np.linalg.norm(features, axis=1, keepdims=True), axis=0)
    return total / np.linalg.norm(total)


def take(engine, folder, class_map=None, mode="mean", **arguments):
    """Returns the centers of all classes before and after."""
    settings = SimpleNamespace(**{**vars(SETTINGS), "new_centers": mode})
    before = all_ranks(engine.layer.rows("weight"))
    data = data_of(folder, **arguments)
    take_new_centers(settings, class_map, engine, data)
    data.close()
    return before, all_ranks(engine.layer.rows("weight"))


def check(centers, images, new):
    for label in new:
        expected = mean_direction(images[label]) * 0.01 * np.sqrt(E)
        np.testing.assert_allclose(centers[label], expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("store", ["device", "host", "files"])
def test_centers_of_all_classes(folder, store, monkeypatch, caplog):
    monkeypatch.setattr(new_centers, "BLOCK", 5)
    arguments = {"folder": f"{folder}/centers"} if store == "files" else {}
    if store == "host":
        arguments["of_layer"] = {"store": lambda size, device: HostStore(CenterStore(size, device), device, cores=1)}
    images = write(folder)
    engine = build(**arguments)
    with caplog.at_level(logging.INFO):
        before, centers = take(engine, folder)
    check(centers, images, range(len(COUNTS)))
    np.testing.assert_array_equal(centers[-1], before[-1])
    assert ("whose centers stay random: 1" in caplog.text) == (RANK == 0)


def test_the_mean_is_the_first_sub_center(folder):
    images = write(folder)
    before, centers = (rows.reshape(CLASSES, 2, E) for rows in take(build(of_layer={"sub_centers": 2}), folder))
    check(centers[:, 0], images, range(len(COUNTS)))
    np.testing.assert_array_equal(centers[:, 1], before[:, 1])


class Photos(ArrayItems):
    """The second item is bad."""

    def read(self, positions, epoch):
        if 1 in positions:
            raise ValueError("item 1 is bad")
        return super().read(positions, epoch)


def test_centers_of_the_classes_of_any_items():
    images, labels = draw_images(sum(COUNTS)), np.repeat(np.arange(len(COUNTS)), COUNTS)
    order = np.random.default_rng(3).permutation(np.arange(2, len(labels)))  # items of a class lie anywhere
    order = np.concatenate([[0, 1], order])
    items = Photos(images[order].transpose(0, 3, 1, 2), labels[order])
    data = tensor_data(ItemBatches(items, BATCH, True, RANK, SIZE, skip_bad_items=1), threads=2, pinned=False)
    engine = build()
    take_new_centers(SETTINGS, None, engine, data)
    good = np.delete(np.arange(len(labels)), 1)
    of_class = [images[good[labels[good] == label]] for label in range(len(COUNTS))]
    check(all_ranks(engine.layer.rows("weight")), of_class, range(len(COUNTS)))
    del items.labels
    with pytest.raises(JobError, match="no attribute labels"):
        take_new_centers(SETTINGS, None, engine, data)
    data.close()


def test_an_item_counts_for_each_of_its_labels(monkeypatch):
    monkeypatch.setattr(new_centers, "BLOCK", 5)
    images, draw = draw_images(sum(COUNTS)), np.random.default_rng(5)
    lists = [draw.choice(len(COUNTS), count, replace=False).tolist() for count in draw.integers(0, 4, len(images))]
    items = ArrayItems(images.transpose(0, 3, 1, 2), [[*each, *each[:1]] for each in lists])  # one is repeated
    data = tensor_data(ItemBatches(items, BATCH, True, RANK, SIZE, labels_per_item=1), threads=2, pinned=False)
    engine = build()
    take_new_centers(SETTINGS, None, engine, data)
    of_class = [images[[label in each for each in lists]] for label in range(len(COUNTS))]
    assert sum(map(len, of_class)) > len(images) and all(map(len, of_class))
    check(all_ranks(engine.layer.rows("weight")), of_class, range(len(COUNTS)))
    data.close()


def test_centers_of_the_classes_that_a_class_map_calls_new(folder):
    images = write(folder)
    class_map = np.array([0, -1, 1, 2, -1, -1, 3, 4, 5, 6, -1, 7])
    before, centers = take(build(), folder, class_map)
    new = np.flatnonzero(class_map < 0)
    check(centers, images, new)
    np.testing.assert_array_equal(np.delete(centers, new, axis=0), np.delete(before, new, axis=0))


@pytest.mark.world_size(2, 3)
def test_class_maps_that_differ_between_the_ranks_are_refused(folder):
    write(folder)
    class_map = np.arange(CLASSES)
    class_map[RANK] = -1
    with pytest.raises(JobError, match="new classes"):
        take(build(), folder, class_map)


def test_bad_images_are_left_out(folder, caplog):
    damaged = [(1, 0), (5, 3), (5, 8)]
    images = write(folder, damaged)
    before, centers = take(build(), folder, skip_bad_images=3)
    check(centers, images, [label for label in range(len(COUNTS)) if label != 1])
    np.testing.assert_array_equal(centers[[1, -1]], before[[1, -1]])
    assert ("whose centers stay random: 2" in caplog.text) == (RANK == 0)


def test_bad_images_above_the_limit_end_all_ranks(folder):
    write(folder, [(5, 3)])
    with pytest.raises(JobError, match="skip_bad_images=1"):
        take(build(), folder)


def test_weights_that_are_not_finite_are_refused_on_all_ranks(folder):
    write(folder)
    engine = build()
    engine.backbone[1].bias.data[0] = float("nan")
    before, centers = take(engine, folder, mode="random")
    np.testing.assert_array_equal(centers, before)
    with pytest.raises(JobError, match="not finite"):
        take(engine, folder)


def test_the_training_reads_the_same_batches_after_it(folder, monkeypatch):
    """Progress is reported for every batch."""
    write(folder)
    plain, used = data_of(folder, shuffle=True), data_of(folder, shuffle=True)
    engine, reported = build(), []
    monkeypatch.setattr(type(engine.collectives), "report_progress", lambda *_: reported.append(1))
    take_new_centers(SETTINGS, None, engine, used)
    assert len(reported) >= sum(COUNTS) // BATCH // SIZE
    for first, second in zip(plain, used):
        assert torch.equal(first.inputs, second.inputs) and (first.labels == second.labels).all()
    plain.close()
    used.close()
