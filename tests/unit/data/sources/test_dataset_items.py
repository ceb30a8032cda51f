"""Datasets of any items: arrays or dicts of them, and what is wrong with one that does not fit."""

import numpy as np
import pytest

from own_items import N, Signals
from partial_fc.data.item_batches import ItemBatches
from partial_fc.data.sources.dataset import DatasetItems


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
    with pytest.raises(ValueError, match=r"list\[3\] cannot be read .*: give the Dataset targets"):
        DatasetItems(items)


class Many:
    """So many items without targets, and how many of them were read."""

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
