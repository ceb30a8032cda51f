"""Batches of items in memory: shares of ranks, bad items, and errors."""

import time

import numpy as np
import pytest

from partial_fc.data.item_batches import ArrayItems, ItemBatches

N = 23
INPUTS = {"values": np.arange(2.0 * N).reshape(N, 2), "mask": np.arange(N) % 2 == 0}
LABELS = np.arange(N) % 5


def batches_of(inputs=INPUTS, **arguments):
    return ItemBatches(ArrayItems(inputs, LABELS), **{"batch_size": 3, "shuffle": True, "seed": 4, **arguments})


@pytest.mark.parametrize("inputs", [INPUTS, INPUTS["values"]])
def test_ranks_have_the_parts_of_one_batch(inputs):
    one = batches_of(inputs, batch_size=6).batch(1, 6)
    parts = [batches_of(inputs, rank=rank, size=2).batch(1, 6) for rank in range(2)]
    np.testing.assert_array_equal(np.concatenate([part.labels for part in parts]), one.labels)
    assert one.labels.dtype == np.int64
    values = [batch.inputs["values"] if isinstance(inputs, dict) else batch.inputs for batch in (*parts, one)]
    np.testing.assert_array_equal(np.concatenate(values[:2]), values[2])
    np.testing.assert_array_equal(LABELS[(values[2][:, 0] / 2).astype(int)], one.labels)


def test_the_digest_depends_on_content_and_names():
    digests = {batches_of().digest, batches_of(INPUTS["values"]).digest}
    digests.add(batches_of({**INPUTS, "mask": ~INPUTS["mask"]}).digest)
    digests.add(batches_of({"others": INPUTS["values"], "mask": INPUTS["mask"]}).digest)
    digests.add(ArrayItems(INPUTS, 4 - LABELS).digest)
    assert len(digests) == 5
    assert batches_of().digest == batches_of({name: array.copy() for name, array in INPUTS.items()}).digest


def test_rows_of_larger_arrays_are_a_set_like_their_copy(monkeypatch):
    monkeypatch.setattr("partial_fc.data.item_batches.DIGESTED", 4)
    rows = np.random.default_rng(0).permutation(2 * N)[:N]
    larger = {"values": np.arange(4.0 * N).reshape(-1, 2), "mask": np.arange(2 * N) % 3 == 0}
    view, copy = ArrayItems(larger, LABELS, rows), ArrayItems({name: of[rows] for name, of in larger.items()}, LABELS)
    assert view.digest == copy.digest and len(view) == len(copy)
    for changed in (rows[0], rows[-1]):
        other = {**larger, "values": larger["values"].copy()}
        other["values"][changed] += 1
        assert ArrayItems(other, LABELS, rows).digest != view.digest
    positions = np.array([5, 0, 22])
    for name, array in view.read(positions, 0).inputs.items():
        np.testing.assert_array_equal(array, copy.read(positions, 0).inputs[name])


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: ArrayItems({"values": np.zeros((3, 2))}, np.zeros(4)), "3 values, but 4 labels"),
        (lambda: ArrayItems(np.zeros((3, 2)), np.zeros(3), np.zeros(2, int)), "2 inputs, but 3 labels"),
        (lambda: ArrayItems(np.zeros((2, 2)), np.array([0, -1])), "item 1 has the label -1"),
        (lambda: ArrayItems(np.zeros((2, 2)), np.array([2**63, 0], np.uint64)), f"item 0 has the label {2**63}"),
        (lambda: ArrayItems(np.zeros((2, 2)), np.array([0, 2**31])), f"item 1 has the label {2**31}"),
        (lambda: ArrayItems(np.zeros((2, 2)), np.array([0.5, 1])), "labels: float64 of shape"),
        (lambda: batches_of(size=8), "batch_size 3 on 8 ranks needs 24 items, there are 23"),
        (lambda: batches_of(batch_size=0), "batch_size must be at least 1"),
        (lambda: batches_of(rank=2, size=2), "rank 2 is out of range"),
        (lambda: batches_of(seed=-1), "seed must be >= 0"),
        (lambda: batches_of(skip_bad_items=-1), "skip_bad_images must be at least 0"),
        (lambda: batches_of().check_labels(4), "item 4 of the set has label 4, but the network has 4 .*num_classes=5"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"labels": LABELS + 0.5}, "labels are integers"),
        ({"labels": LABELS[:, None, None]}, "an item for each"),
        ({"labels": LABELS + 1}, "of the set has label 5, expected 0 to 4"),
        ({"labels": LABELS - 1}, "of the set has label -1, expected 0 to 4"),
        ({"values": INPUTS["values"][:, 0].sum()}, "an item for each"),
    ],
)
def test_what_a_set_reads_wrongly_is_refused(changes, message):
    class Wrong(ArrayItems):
        def read(self, positions, epoch):
            read = {"labels": self.labels, **self.inputs, **changes}
            read = {name: np.asarray(array)[positions] if np.ndim(array) else array for name, array in read.items()}
            return {"values": read["values"], "mask": read["mask"]}, read["labels"]

    batches = ItemBatches(Wrong(INPUTS, LABELS), 5, True)
    with pytest.raises(ValueError, match=message):
        for first in range(0, 20, 5):
            batches.batch(0, first)


def test_the_time_that_a_set_waits_counts_as_reading():
    class Slow(ArrayItems):
        def read(self, positions, epoch):
            time.sleep(0.3)  # much longer than delays of a busy machine
            return super().read(positions, epoch)

    batches = ItemBatches(Slow(INPUTS, LABELS), 3, True)
    batches.batch(0, 0)
    counters = batches.log.counters
    assert 0.9 * counters.busy_seconds < counters.read_seconds <= counters.busy_seconds


class SomeBad(ArrayItems):
    """Some items cannot be read."""

    def __init__(self, bad):
        super().__init__(INPUTS, LABELS)
        self.bad = bad

    def read(self, positions, epoch):
        for position in set(positions.tolist()) & self.bad:
            raise ValueError(f"item {position} is damaged")
        return super().read(positions, epoch)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("mapping", [True, False])
def test_an_item_with_a_number_that_is_not_finite_is_bad(number, mapping, caplog):
    values = INPUTS["values"].astype(np.float32)
    values[4, 1] = number
    inputs = {**INPUTS, "values": values} if mapping else values
    with pytest.raises(ValueError, match="item 4 of the set has a number in .* that is not finite.*skip_bad_images=1"):
        ItemBatches(ArrayItems(inputs, LABELS), 3, shuffle=False).batch(0, 3)
    batches = ItemBatches(ArrayItems(inputs, LABELS), 3, shuffle=False, skip_bad_items=1)
    assert batches.batch(0, 3).labels.tolist() == LABELS[[3, 5, 5]].tolist() and list(batches.log.bad) == [4]
    assert batches.read(np.array([3, 4]))[1].tolist() == [True, False]
    sample = batches.sample(5)
    assert (sample["values"] if mapping else sample)[-1, 0] == values[5, 0]
    assert caplog.text.count("item 4 of the set") == 1


def test_bad_items_are_named_replaced_by_the_following_one_and_counted_once(caplog):
    batches = ItemBatches(SomeBad({4, 22}), 3, shuffle=False, skip_bad_items=2)
    for _ in range(2):
        inputs = batches.batch(0, 3).inputs
        assert inputs["values"][:, 0].tolist() == [6, 10, 10] and inputs["mask"].tolist() == [False, False, False]
        last = ItemBatches(batches.items, 23, shuffle=False, skip_bad_items=2).batch(0, 0)
        assert last.inputs["values"][-1, 0] == 0 and last.labels[-1] == 0  # after the last item comes the first
    assert batches.log.bad == {4: "item 4 is damaged"}
    assert "skipped, bad item 1 of at most 2: item 4 is damaged" in caplog.text
    assert batches.sample(4)["values"][:, 0].tolist() == [0, 2, 4, 6]
    found, good = ItemBatches(batches.items, 3, shuffle=False, skip_bad_items=2).read(np.array([22, 3, 4, 5]))
    assert found["values"][:, 0].tolist() == [6, 10] and good.tolist() == [False, True, False, True]
    assert batches.sample(5)["values"][-1, 0] == 10 and len(batches.sample(N)["values"]) == N - 2
    none, every = ItemBatches(batches.items, 3), ItemBatches(SomeBad(set(range(N))), 3, skip_bad_items=N)
    hint = "item 4 is damaged; or skip it with skip_bad_images=1 or more"
    for read, message in (
        (lambda: none.batch(0, 3), hint),
        (lambda: none.read(np.array([3, 4])), hint),
        (lambda: every.batch(0, 3), "is damaged"),
        (lambda: every.sample(2), "is damaged"),
    ):
        with pytest.raises(ValueError, match=message):
            read()


def test_ranks_share_the_items_that_are_checked_before_the_start():
    first, second, third = (ItemBatches(SomeBad({7}), 3, rank=rank, size=3) for rank in range(3))
    for share in (first, third):
        share.check_items(4)
    with pytest.raises(ValueError, match="item 7 is damaged"):
        second.check_items(4)


def test_items_that_do_not_fit_into_one_batch_are_named():
    class Uneven(ArrayItems):
        def read(self, positions, epoch):
            lengths = [3 + (position == 4) for position in positions.tolist()]
            return {"values": np.stack([np.zeros(length) for length in lengths])}, self.labels[positions]

    batches = ItemBatches(Uneven(INPUTS, LABELS), 3, shuffle=False)
    assert batches.batch(0, 0).inputs["values"].shape == (3, 3)
    for read in (lambda: batches.batch(0, 3), lambda: batches.sample(7)):
        with pytest.raises(ValueError, match=r"items [03] and 4 of the set have the shapes .*\(3,\).*\(4,\)"):
            read()


def ordered(step=2):
    """Returns a set with a custom order: every ``step``-th item, from another start in each epoch."""
    items = ArrayItems(INPUTS, LABELS)
    items.epoch_positions = lambda indices, epoch, seed: (step * indices + epoch + seed) % N
    return items


def test_a_set_may_have_its_own_order_which_ranks_share():
    whole = ItemBatches(ordered(), 6, shuffle=True, seed=4)
    expected = (2 * np.arange(6, 12) + 3 + 4) % N
    assert (whole.batch(3, 6).inputs["values"][:, 0] / 2).tolist() == expected.tolist()
    parts = [ItemBatches(ordered(), 3, rank=rank, size=2, seed=4).batch(3, 6).labels for rank in range(2)]
    assert np.concatenate(parts).tolist() == LABELS[expected].tolist()


def test_the_digest_tells_orders_apart():
    orders = [ItemBatches(ordered(step), 6, seed=seed) for step, seed in ((2, 4), (3, 4), (2, 5))]
    assert len({batches_of().digest, *(each.digest for each in orders)}) == 4
    assert ItemBatches(ordered(), 3, rank=1, size=2, seed=4).digest == orders[0].digest


@pytest.mark.parametrize(
    "order, message",
    [
        (lambda indices, epoch, seed: indices[:-1], r"int64 of shape \(5,\) for indices of shape \(6,\)"),
        (lambda indices, epoch, seed: indices / 2, "float64"),
        (lambda indices, epoch, seed: indices + N, "from 0 to 22"),
        (lambda indices, epoch, seed: indices - N, "from 0 to 22"),
        (lambda indices: indices, "epoch_positions of the set failed: TypeError"),
    ],
)
def test_a_wrong_order_is_refused(order, message):
    items = ArrayItems(INPUTS, LABELS)
    items.epoch_positions = order
    with pytest.raises(ValueError, match=message):
        ItemBatches(items, 6).batch(0, 0)


def test_an_order_of_all_items_does_not_fit_to_a_part_of_them():
    items = ordered()
    items.order_entries = {"images_filter": 3}
    with pytest.raises(ValueError, match="min_images_per_class=3 leaves out some: set it to 0"):
        ItemBatches(items, 6)
