"""Datasets of any items: arrays, dicts of arrays, and errors of Datasets that do not fit."""

import sqlite3
import struct
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
from PIL import Image

from own_items import N, Signals, Sought
from partial_fc.data.face_items import FaceItems
from partial_fc.data.item_batches import ItemBatches
from partial_fc.data.label_file import FileLabels
from partial_fc.data.sources.dataset import DatasetItems, LabelledDataset
from partial_fc.data.sources.forms import open_images


def test_items_are_those_of_the_dataset_by_name_or_as_they_are():
    for dataset in ("own_items:Signals", Signals()):
        items = DatasetItems(dataset)
        assert (len(items), items.num_classes) == (N, 10)
        read = items.read(np.array([7, 30]), epoch=0)
        np.testing.assert_array_equal(read.inputs["known"], [Signals()[7][0]["known"], Signals()[30][0]["known"]])
        assert read.inputs["values"].shape == (2, 8) and read.inputs["values"].dtype == np.float32
        assert read.labels.tolist() == [7, 0] and read.labels.dtype == np.int64
    assert (
        DatasetItems(Signals()).digest
        == DatasetItems("own_items:Signals").digest
        != DatasetItems(Signals(), "1").digest
    )
    own = Listed([(np.zeros(2), label) for label in Listed.targets])
    own.digest = "of its version"
    assert DatasetItems(own).digest == "of its version" and DatasetItems(own, "given").digest == "given"


def test_an_image_of_pillow_is_read_upright():
    image = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(2, 4, 3))
    image.info["exif"] = b"MM\0*" + struct.pack(">IHHHIHH", 8, 1, 0x0112, 3, 1, 6, 0)
    items = DatasetItems(Listed([(image, label) for label in Listed.targets]))
    np.testing.assert_array_equal(items.read(np.array([0]), 0).inputs[0], np.rot90(np.asarray(image), -1))


@pytest.mark.parametrize("targets", [[[[0]], [[1]]], [[0], [0.5]], [0, 1, 1], [False, True], [0.0, 1.0]])
def test_targets_of_another_form_are_refused(targets):
    dataset = type("Own", (list,), {"targets": targets})([(np.zeros(2), 0), (np.zeros(2), 1)])
    with pytest.raises(ValueError, match="Own: .* expected an integer|Own has 2 items, but 3 targets"):
        DatasetItems(dataset)


class Listed(list):
    targets = (0, 1, 1, 0)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ((np.zeros(3), 1), r"Listed\[2\] is float64 \(3,\), but other items are float64 \(2,\): correct the Dataset"),
        (({"values": np.zeros(2)}, 1), "but other items are"),
        ((np.zeros(2, np.float32), 1), r"is float32 \(2,\), but"),
        (("text", 1), "is str of <U4, expected a tensor, or a dict of tensors"),
        ((np.zeros(2), 1, 2), r"Listed\[2\] cannot be read \(ValueError: too many values"),
        ((np.array([0, np.nan]), 1), r"Listed\[2\] has a number in inputs that is not finite"),
    ],
)
def test_an_item_of_another_form_is_bad(wrong, message):
    dataset = Listed([(np.zeros(2), 0), (np.ones(2), 1), wrong, (np.ones(2), 0)])
    with pytest.raises(ValueError, match=message):
        ItemBatches(DatasetItems(dataset), 4, shuffle=False).batch(0, 0)
    batches = ItemBatches(DatasetItems(dataset), 4, shuffle=False, skip_bad_items=1)
    assert batches.batch(0, 0).labels.tolist() == [0, 1, 0, 0] and list(batches.log.bad) == [2]


def test_the_form_is_that_of_the_first_item_that_can_be_read():
    items = DatasetItems(Signals(bad=(0, 1)))
    assert items.read(np.array([2]), 0).labels.tolist() == [2]
    following = Listed([("text", 0), (np.zeros(2), 1), (np.ones(2), 1), (np.zeros(3), 0)])
    assert DatasetItems(following).read(np.array([1, 2]), 0).labels.tolist() == [1, 1]
    with pytest.raises(ValueError, match="no other item can be used"):
        DatasetItems(Signals(bad=range(N)))


def test_a_label_that_is_not_that_of_targets_is_refused():
    class Other(Signals):
        def __getitem__(self, position):
            return super().__getitem__(position)[0], 3

    with pytest.raises(ValueError, match=r"Other\[4\] has the label 3, but targets have 4: correct the Dataset"):
        DatasetItems(Other()).read(np.array([3, 4]), 0)


def test_a_dataset_without_targets_needs_the_label_of_each_item():
    items = [Signals()[position] for position in range(4)]
    assert DatasetItems(items).labels.tolist() == [0, 1, 2, 3]
    items[3] = None
    with pytest.raises(ValueError, match=r"list\[3\] cannot be read .* has no targets"):
        DatasetItems(items)


class Many:
    """Items without targets; counts how many were read."""

    def __init__(self, count):
        self.count, self.read = count, 0

    def __len__(self):
        return self.count

    def __getitem__(self, position):
        self.read += 1
        return np.zeros(1, np.float32), position % 7


def test_a_large_dataset_without_targets_is_refused_before_an_item_is_read():
    assert len(DatasetItems(Many(50_000)).labels) == 50_000
    many = Many(50_001)
    with pytest.raises(ValueError, match="Many has 50,001 items and no attribute targets: .* self.targets = "):
        DatasetItems(many)
    assert many.read == 0
    many.targets = np.arange(50_001) % 7
    assert DatasetItems(many).num_classes == 7 and many.read == 1


@pytest.mark.parametrize("form", [DatasetItems, open_images])
def test_threads_call_a_dataset_one_at_a_time(form):
    opened = form("own_items:Sought")

    def color_of(position):
        is_image = form is open_images
        pixels = opened.read(position, position) if is_image else opened.read(np.array([position]), 0).inputs
        return int(pixels.max())

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(color_of, range(N))) == list(range(N))


def test_threads_convert_items_at_once():
    dataset, both = LabelledDataset(Sought()), Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(lambda position: dataset.read(position, lambda _: both.wait(20)), range(2))) == [0, 1]


def test_a_dataset_for_one_thread_alone_is_told_of_processes():
    class Database(Signals):
        connection = sqlite3.connect(":memory:")

        def __getitem__(self, position):
            return [np.array(self.connection.execute("SELECT 1").fetchone()), self.targets[position]]

    items = DatasetItems(Database())
    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match=r"Database\[1\] .*set decode_processes=1"):
        pool.submit(items.read, np.array([1]), 0).result()


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("form", ["items", "images"])
def test_a_dataset_may_order_its_items_as_images_and_with_labels_of_a_file_too(form, labelled, tmp_path):
    name = "own_items:Backwards"
    items = FaceItems(name, (4, 4)) if form == "images" else DatasetItems(name)
    if labelled:
        np.save(tmp_path / "labels.npy", np.arange(N) // 2)
        items = FileLabels(items, str(tmp_path / "labels.npy"), N // 2)
    batch = ItemBatches(items, 4, shuffle=True).batch(0, 8)
    assert batch.inputs.reshape(4, -1).max(axis=1).tolist() == [N - 9, N - 10, N - 11, N - 12]
    assert batch.labels.tolist() == [place // 2 if labelled else place for place in range(N - 9, N - 13, -1)]


def test_an_order_does_not_fit_to_images_that_are_left_out():
    with pytest.raises(ValueError, match="epoch_positions .* min_images_per_class=1 leaves out some: set it to 0"):
        ItemBatches(FaceItems("own_items:Backwards", (4, 4), min_images_per_class=1), 4)
