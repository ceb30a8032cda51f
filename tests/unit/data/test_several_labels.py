"""Items with several labels: in sets, in a file beside a set, drawn anew in every epoch, and counted by class."""

import pickle

import numpy as np
import pytest

from face_sets import face_batches, jpeg, write_records
from own_items import Signals
from partial_fc.data.batch import Batch
from partial_fc.data.class_images import ClassImages
from partial_fc.data.item_batches import ArrayItems, ItemBatches
from partial_fc.data.label_file import FileLabels
from partial_fc.data.label_runs import KeptImages, LabelRuns, class_labels, label_array
from partial_fc.data.order import draw_labels
from partial_fc.data.sources.dataset import DatasetItems
from partial_fc.data.training_data import DummyData
from partial_fc.data.transforms import Augmentation

N, CLASSES = 23, 9
LISTS = [sorted({n % CLASSES, n * n % CLASSES, n // 3} - {0}) for n in range(N)]  # the first one is empty
LABELS = np.array([[*each, *[-1] * (3 - len(each))] for each in LISTS])
INPUTS = np.arange(2.0 * N).reshape(N, 2)


def of_class(label, lists=LISTS):
    return [n for n, each in enumerate(lists) if label in each]


def saved(tmp_path, labels, name="labels.npy"):
    np.save(tmp_path / name, labels)
    return str(tmp_path / name)


def one_label():
    return ArrayItems(INPUTS, np.arange(N) % 2)


# Forms -----------------------------------------------------------------------------------------------


def test_lists_are_padded_and_single_labels_stay_as_they_are():
    np.testing.assert_array_equal(label_array(LISTS), LABELS)
    np.testing.assert_array_equal(label_array([np.array([3]), (1, 2)]), [[3, -1], [1, 2]])
    assert label_array([1, 2]).shape == label_array([[1], [2]]).shape == (2,)
    assert label_array([[], []]).tolist() == [[-1], [-1]]
    assert label_array(LABELS) is LABELS
    with pytest.raises(ValueError, match="an item has 2000 labels, expected at most 1024"):
        label_array([range(2000), [1]])


@pytest.mark.parametrize(
    "labels, message",
    [
        (np.array([[0, 1], [2, -2]]), "item 1 has the label -2"),
        (np.array([[0, 2**31], [2, -1]]), f"item 0 has the label {2**31}"),
        (np.array([[0, 1], [2, 2**64 - 1]], np.uint64), f"item 1 has the label {2**64 - 1}"),
        (np.full((2, 2), -1), "no item has a label"),
        (np.array([0, -1]), "item 1 has the label -1"),
    ],
)
def test_wrong_labels_are_refused(labels, message):
    with pytest.raises(ValueError, match=f"set: {message}"):
        class_labels(labels, "set")


def test_a_set_reads_lists_as_padded_arrays():
    batches = ItemBatches(ArrayItems(INPUTS, LISTS), 4)
    np.testing.assert_array_equal(batches.batch(0, 4).labels, LABELS[4:8])
    assert batches.batch(0, 0).labels.dtype == np.int64 and batches.label_shape == (3,)
    assert ItemBatches(one_label(), 4).label_shape == ()
    assert batches.digest != ItemBatches(ArrayItems(INPUTS, LABELS[:, ::-1]), 4).digest
    batches.check_labels(CLASSES)
    with pytest.raises(ValueError, match="item 4 of the set has label 7, but the network has 5 classes"):
        batches.check_labels(5)


@pytest.mark.parametrize(
    "labels, message",
    [
        (lambda positions: LABELS[positions, : 2 + positions[0] % 2], r"labels \(3,\) of each item, but \(2,\)"),
        (lambda positions: LABELS[positions] - 1, "item 0 of the set has label -2, expected 0 to 8"),
        (lambda positions: LABELS[positions] + 1, "item 8 of the set has label 9, expected 0 to 8"),
    ],
)
def test_what_a_task_reads_wrongly_is_refused(labels, message):
    class Own(ArrayItems):
        def read(self, positions, epoch):
            return self.inputs[positions], labels(positions)

    batches = ItemBatches(Own(INPUTS, LABELS), 1)
    with pytest.raises(ValueError, match=message):
        for first in range(N):
            batches.batch(0, first)


class Several(Signals):
    targets = LISTS

    def __len__(self):
        return N

    def __getitem__(self, position):
        return INPUTS[position], self.label(position)

    def label(self, position):
        return np.array(LISTS[position])


class Untold(Several):
    targets = None


class First(Several):
    def label(self, position):
        return LISTS[position][:1]


class Halves(Untold):
    def label(self, position):
        return [0.5]


@pytest.mark.parametrize("dataset", [Several, Untold])
def test_a_dataset_gives_lists_in_its_items_and_in_targets(dataset):
    items = DatasetItems(dataset())
    np.testing.assert_array_equal(items.labels, LABELS)
    np.testing.assert_array_equal(items.read(np.array([0, 9]), 0).labels, LABELS[[0, 9]])


def test_lists_of_a_dataset_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"First\[5\] has the label 1, but targets have \[ ?1 5 7\]: correct the Data"):
        DatasetItems(First()).read(np.array([5]), 0)
    with pytest.raises(ValueError, match=r"its label is of type list, expected an integer from 0, or a list of them"):
        DatasetItems(Halves())


def test_dummy_batches_have_as_many_labels():
    dummies = DummyData(INPUTS[:4], lambda labels: labels, 5, CLASSES, 1, 0, label_shape=(3,))
    labels = dummies.next()
    assert labels.shape == (4, 3) and 0 <= labels.min() <= labels.max() < CLASSES


# Draws -----------------------------------------------------------------------------------------------


def test_labels_are_drawn_from_those_of_each_item_without_replacement():
    positions, labels = np.arange(N), np.column_stack([LABELS, LABELS[:, 0]])  # the first one is repeated
    for count in (1, 2, 3, 4):
        drawn = draw_labels(labels, count, 5, 2, positions)
        assert drawn.shape == (N, count)
        for row, present in zip(drawn.tolist(), LISTS):
            chosen = [label for label in row if label != -1]
            assert set(chosen) <= set(present) and len(chosen) == len(set(chosen)) == min(count, len(present))
    in_any_order = [draw_labels(each, 2, 5, 2, positions) for each in (labels, labels[:, ::-1])]
    np.testing.assert_array_equal(*in_any_order)


def test_draws_are_uniform_and_independent_between_epochs_and_items():
    """The bound is five standard deviations."""
    count = 20000
    labels = np.tile(np.arange(5), (count, 1))
    drawn = [np.sort(draw_labels(labels, 2, 1, epoch, np.arange(count))) for epoch in (0, 1)]
    for epoch in drawn:
        shares = np.bincount(epoch.ravel()) / count
        assert np.abs(shares - 2 / 5).max() < 5 * np.sqrt(0.4 * 0.6 / count)
    for other in (drawn[1], np.roll(drawn[0], 1, axis=0)):  # there are ten pairs
        assert abs((drawn[0] == other).all(axis=1).mean() - 0.1) < 5 * np.sqrt(0.1 * 0.9 / count)


@pytest.mark.parametrize("size", [2, 4])
def test_an_item_has_the_same_labels_on_any_number_of_ranks(size):
    def drawn(size, epoch):
        labels = {}
        for rank in range(size):
            batches = ItemBatches(ArrayItems(INPUTS, LISTS), 4 // size, True, rank, size, 7, labels_per_item=2)
            for first in range(0, 20, 4):
                batch = batches.batch(epoch, first)
                labels.update(zip(batch.inputs[:, 0].tolist(), batch.labels.tolist()))
        return labels

    first = drawn(1, 0)
    assert drawn(size, 0) == first and len(first) == 20
    second = drawn(1, 1)
    assert any(second[item] != labels for item, labels in first.items() if item in second)


def test_bad_items_have_the_labels_of_the_one_that_replaces_them():
    class SomeBad(ArrayItems):
        def read(self, positions, epoch):
            if 4 in positions:
                raise ValueError("item 4 is damaged")
            return super().read(positions, epoch)

    batches = ItemBatches(SomeBad(INPUTS, LISTS), 3, skip_bad_items=1)
    np.testing.assert_array_equal(batches.batch(0, 3).labels, LABELS[[3, 5, 5]])


@pytest.mark.parametrize("items, in_set", [(one_label, "1 label"), (lambda: ArrayItems(INPUTS, LISTS), "3 labels")])
def test_more_labels_than_items_have_are_refused(items, in_set):
    with pytest.raises(
        ValueError, match=f"labels_per_item is 4, but the items of the set have {in_set}: set a smaller"
    ):
        ItemBatches(items(), 4, labels_per_item=4).check_labels(CLASSES)
    batches = ItemBatches(items(), 4, labels_per_item=1)
    batches.check_labels(CLASSES)
    assert batches.batch(0, 0).labels.shape == (4, 1) and batches.label_shape == (1,)


def test_labels_of_another_shape_are_refused():
    class Square(ArrayItems):
        def read(self, positions, epoch):
            inputs, labels = super().read(positions, epoch)
            return Batch(inputs, np.stack([labels[:, None]] * 2, axis=2))

    batches = ItemBatches(Square(INPUTS, np.zeros(N, int)), 4)
    batches.check_labels(1)
    with pytest.raises(ValueError, match=r"'labels': 'int64 \(4, 1, 2\)'.* each array must have an item"):
        batches.batch(0, 0)


# A file beside the set -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.int64, np.int8, ">i4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_labels_of_a_file_take_the_place_of_those_of_the_set(kind, order, tmp_path, monkeypatch):
    monkeypatch.setattr("partial_fc.data.label_file.BLOCK", 12)
    items = FileLabels(one_label(), saved(tmp_path, np.asarray(LABELS, kind, order=order)), CLASSES)
    batches = ItemBatches(items, 4, labels_per_item=0)
    batch = batches.batch(0, 4)
    np.testing.assert_array_equal(batch.labels, LABELS[4:8])
    np.testing.assert_array_equal(batch.inputs, INPUTS[4:8])
    assert type(batch.labels) is np.ndarray and batch.labels.dtype == np.int64
    np.testing.assert_array_equal(items.labels, LABELS)
    assert items.num_classes == 9 and isinstance(items._file, np.memmap)
    assert type(pickle.loads(pickle.dumps(batch)).labels) is np.ndarray
    batches.check_labels(CLASSES)


def test_one_label_in_a_file_stays_one_label_unless_some_are_missing(tmp_path):
    labels = np.arange(N)[::-1].astype(np.uint8)
    items = FileLabels(one_label(), saved(tmp_path, labels), N)
    np.testing.assert_array_equal(items.read(np.array([0, 3]), 0).labels, [22, 19])
    labels = labels.astype(np.int16)
    labels[3] = -1
    items = FileLabels(one_label(), saved(tmp_path, labels), N)
    np.testing.assert_array_equal(items.read(np.array([0, 3]), 0).labels, [[22], [-1]])


def test_the_digest_depends_on_the_set_and_all_labels_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("partial_fc.data.label_file.BLOCK", 12)
    changed = LABELS.copy()
    changed[-1, -1] = 0
    path = saved(tmp_path, LABELS)
    digests = [FileLabels(one_label(), path, CLASSES).digest]
    for kind in (np.int64, np.int8):
        assert FileLabels(one_label(), saved(tmp_path, LABELS.astype(kind), "copy.npy"), CLASSES).digest == digests[0]
    digests += [one_label().digest, FileLabels(one_label(), saved(tmp_path, changed, "other.npy"), CLASSES).digest]
    digests.append(FileLabels(ArrayItems(INPUTS + 1, np.zeros(N, int)), path, CLASSES).digest)
    assert len(set(digests)) == 4


@pytest.mark.parametrize(
    "labels, message",
    [
        (LABELS[1:], "has labels of 22 items, but the set has 23"),
        (LABELS + 0.0, "holds float64 of shape"),
        (LABELS > 1, "holds bool of shape"),
        (LABELS[:, None], r"holds int64 of shape \(23, 1, 3\), expected integers of shape \(N,\) or \(N, P\)"),
        (LABELS[:, :0], r"holds int64 of shape \(23, 0\)"),
        (LABELS + 1, "item 8 of the set has the label 9, expected -1 for none or 0 to 8: set num_classes, or correct"),
        (LABELS - 1, "item 0 of the set has the label -2, expected -1 for none or 0 to 8"),
        (np.full(N, 2**64 - 1, np.uint64), "item 0 of the set has the label 18446744073709551615"),
        (np.full(N, -1), "no item has a label"),
        (np.zeros((N, 1025), np.int8), r"holds int8 of shape \(23, 1025\), .* P at most 1024"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(labels, message, tmp_path, monkeypatch):
    monkeypatch.setattr("partial_fc.data.label_file.BLOCK", 12)
    with pytest.raises(ValueError, match=f"labels.npy:? {message}"):
        FileLabels(one_label(), saved(tmp_path, labels), CLASSES)


def test_unsigned_labels_of_small_classes_are_left_out(tmp_path):
    labels = np.arange(2 * N).reshape(N, 2) % 3
    labels[0] = 5, 4
    expected = FileLabels(one_label(), saved(tmp_path, labels), CLASSES, 2).labels
    found = FileLabels(one_label(), saved(tmp_path, labels.astype(np.uint8), "unsigned.npy"), CLASSES, 2).labels
    assert len(found) == N - 1 and (found == expected).all()


def test_lists_whose_padding_would_take_the_memory_are_refused():
    lists = [[0]] * 100_000 + [list(range(1024))]
    with pytest.raises(ValueError, match="an item has 1024 labels, but most items have few"):
        label_array(lists)
    with pytest.raises(ValueError, match="an item has 1025 labels, expected at most 1024"):
        label_array(np.zeros((2, 1025), int))


def test_a_file_that_is_missing_or_no_array_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"labels\.npy"):
        FileLabels(one_label(), str(tmp_path / "labels.npy"), CLASSES)
    (tmp_path / "labels.npy").write_bytes(b"no array")
    with pytest.raises(ValueError, match=r"labels\.npy is damaged"):
        FileLabels(one_label(), str(tmp_path / "labels.npy"), CLASSES)


# Classes ---------------------------------------------------------------------------------------------


def kept_of(lists, least):
    """The labels of each item that are left, without items that have none."""
    many = {label for label in range(CLASSES) if len(of_class(label, lists)) >= least}
    left = [[label for label in each if label in many] for each in lists]
    return {n: each for n, each in enumerate(left) if each or not least}


@pytest.mark.parametrize("least", [0, 1, 5, 8])
def test_classes_with_few_items_are_left_out_and_items_without_another_label(least, tmp_path, monkeypatch):
    monkeypatch.setattr("partial_fc.data.label_file.BLOCK", 12)
    repeated = np.column_stack([LABELS, LABELS[:, 0]])  # a repeated label counts once
    kept = KeptImages(LabelRuns.of_labels(repeated), least)
    expected = kept_of(LISTS, least)
    assert 0 < len(expected) <= N - (least > 0) and (least < 8 or len(expected) < N - 1)
    positions, labels = kept.at(np.arange(len(kept)))
    assert positions.tolist() == list(expected)
    np.testing.assert_array_equal(kept.labels(), labels)
    items = FileLabels(one_label(), saved(tmp_path, repeated), CLASSES, least)
    read = items.read(np.arange(len(items)), 0)
    np.testing.assert_array_equal(read.inputs, INPUTS[list(expected)])
    np.testing.assert_array_equal(items.labels, read.labels)
    for rows in (labels, read.labels):
        assert [sorted(set(row.tolist()) - {-1}) for row in rows] == list(expected.values())
    assert items.describe(len(items) - 1) == f"item {list(expected)[-1]} of the set"
    assert ItemBatches(items, 2).order.get("images_filter", 0) == least


def test_a_file_of_single_labels_leaves_out_small_classes(tmp_path):
    labels = np.repeat([0, 1, 2], [3, 1, N - 4])
    items = FileLabels(one_label(), saved(tmp_path, labels), 3, 3)
    assert items.labels.tolist() == [0] * 3 + [2] * (N - 4)
    with pytest.raises(ValueError, match=f"no class has 30 items, the largest has {N - 4}: decrease min_images"):
        FileLabels(one_label(), saved(tmp_path, labels), 3, 30)


def test_counts_of_sparse_labels_need_little_memory():
    runs = LabelRuns.of_labels(np.array([[2**31 - 1, 5], [-1, 5], [-1, 5]]))
    counts, of_labels = runs.images_per_label()
    assert counts.tolist() == [3, 1] and of_labels.tolist() == [[1, 3], [0, 3]]


@pytest.mark.parametrize("beside", [True, False])
def test_an_item_belongs_to_each_of_its_classes(beside, tmp_path):
    items = FileLabels(one_label(), saved(tmp_path, LABELS), CLASSES) if beside else ArrayItems(INPUTS, LISTS)
    images = ClassImages(ItemBatches(items, 2), threads=1)
    classes = np.array([1, 4, 8])
    positions, places = images.of(classes)
    expected = [(n, place) for place, label in enumerate(classes) for n in of_class(label)]
    assert list(zip(positions.tolist(), places.tolist())) == expected


def test_images_with_labels_of_a_file_are_those_of_the_set(tmp_path):
    rec = write_records(tmp_path, {key: (float(key % 2), key, 0, jpeg(key)) for key in range(N)})
    augmented = Augmentation(rand_mirror=True, color_jittering=0.5)
    faces = face_batches(rec, 4, (16, 16), shuffle=True, seed=3, augmentation=augmented)
    items = FileLabels(faces.items, saved(tmp_path, LABELS), CLASSES)
    batch = ItemBatches(items, 4, True, seed=3).batch(1, 8)
    np.testing.assert_array_equal(batch.inputs, faces.batch(1, 8).inputs)
    plain = ItemBatches(items, 4).sample(4)
    np.testing.assert_array_equal(plain, faces.sample(4))
    assert (plain != ItemBatches(items, 4).batch(0, 0).inputs).any()
    with pytest.raises(ValueError, match=r"train\.rec: .*key 2 .*has the label 12"):
        FileLabels(faces.items, saved(tmp_path, np.where(np.arange(N) == 2, 12, 0)), CLASSES)
