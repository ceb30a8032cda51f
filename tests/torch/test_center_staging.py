"""Centers on the host, whose rows are copied to the device of a step, mostly in advance: the same training."""

import time
from functools import partial

import numpy as np
import pytest
import torch

from partial_fc_torch import CosFace, PartialFC, bank
from partial_fc_torch.bank import TorchBank
from partial_fc_torch.layer.optimizers import Adagrad, AdamW
from partial_fc_torch.layer.rows import HostCopy
from partial_fc_torch.layer.stores import host
from partial_fc_torch.layer.stores.host import replacements
from partial_fc_torch.sharded_state import ShardedState

CLASSES, E, B = 500, 16, 8
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}  # float32 sums in another order, because the order of the centers differs


def build(on_host, ratio=0.2, **arguments):
    sizes = {"num_classes": CLASSES, "sample_rate": ratio, "embedding_size": E, "tile_classes": 64}
    layer = PartialFC(margin_softmax=CosFace(), device="cpu", on_host=on_host, **sizes, **arguments)
    layer.learning_rate = 0.1
    return layer


def batches(steps, seed=0, batch=B):
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        yield torch.from_numpy(rng.standard_normal((batch, E), np.float32)), rng.integers(0, CLASSES, batch)


def assert_same(first, second, steps=6, **tolerance):
    """Trains both layers on the same batches and compares gradients, losses, centers and states."""
    for features, labels in batches(steps):
        for one, other in zip(first.step(features, labels), second.step(features, labels)):
            torch.testing.assert_close(one, other, **tolerance)
    for field in first.widths:
        torch.testing.assert_close(first.rows(field), second.rows(field), **tolerance)


# Where a gradient is nearly 0, its sign decides AdamW's first update: a larger eps keeps both trainings together.
@pytest.mark.parametrize("optimizer", ["sgd", AdamW(eps=0.1), Adagrad()], ids=["sgd", "adamw", "adagrad"])
@pytest.mark.parametrize("ratio, tolerance", [(0.2, TOLERANCE), (0.7, TOLERANCE), (1.0, {"rtol": 0, "atol": 0})])
def test_training_equals_centers_on_the_device_and_in_files(ratio, tolerance, optimizer, tmp_path):
    make = partial(build, ratio=ratio, optimizer=optimizer)
    assert_same(make(False), make(True), **tolerance)
    assert_same(make(True), make(True, folder=str(tmp_path)), rtol=0, atol=0)


def test_only_positives_that_were_not_drawn_are_fetched_in_a_step():
    layer, fetched = build(True), []
    gather = layer._store._gather
    layer._store._gather = lambda rows, index: fetched.append(len(index)) or gather(rows, index)
    for number, (features, labels) in enumerate(batches(5)):
        layer.step(features, labels)
        layer._store._ahead.result()
        step, ahead = fetched[:-2], fetched[-2:]
        assert ahead == [100, 100]  # weight and momentum of the next step
        assert step[-1] <= B and (number == 0 or len(step) == 2)
        fetched.clear()


@pytest.mark.parametrize("size", [0, 1, 2, 50, 400])
def test_missing_rows_replace_unused_ones(size):
    rng = np.random.default_rng(size)
    for _ in range(20):
        fetched, wanted = (np.sort(rng.choice(500, size, replace=False)) for _ in range(2))
        missing, unused, positions = replacements(fetched, wanted)
        assert missing.tolist() == sorted(set(wanted) - set(fetched))
        fetched[unused] = missing
        assert fetched[positions].tolist() == wanted.tolist()


@pytest.mark.parametrize("first", [-1, CLASSES])
def test_a_sample_beyond_the_classes_is_an_error(first):
    layer = build(True)
    layer.sample = lambda labels: torch.tensor([first])
    with pytest.raises(IndexError, match="the sample has classes"):
        layer.step(*next(batches(1)))


def test_the_last_part_of_the_rows_may_be_smaller(monkeypatch):
    monkeypatch.setattr(host, "PART_BYTES", 7 * 4 * E)  # of 100 rows
    assert_same(build(False), build(True), **TOLERANCE)


@pytest.mark.parametrize("part", [1, 70, CLASSES, 2 * CLASSES])
def test_rows_of_a_gpu_come_to_the_host_part_by_part(part, monkeypatch):
    """The host's memory may be too small for a copy of all of them."""
    layer, begun, parts = build(False), [], []
    monkeypatch.setattr(bank, "PART_BYTES", part * 4 * E)
    monkeypatch.setattr(bank, "HostCopy", lambda rows: begun.append(len(rows)) or HostCopy(rows))
    for rows in TorchBank(layer).host_rows("weight", copied=False):
        parts.append(rows)
        assert len(begun) == min(len(parts) + 1, -(-CLASSES // part))  # the next part is copied meanwhile
    assert np.array_equal(np.concatenate(parts), layer.weight.detach())
    joined = bank._joined(parts, layer.weight)
    assert np.array_equal(joined, layer.weight.detach()) and not np.shares_memory(joined, parts[0])


def test_a_sample_of_another_size_and_a_batch_beyond_the_sample():
    plain, staged = build(False), build(True)
    for layer in (plain, staged):
        layer.step(*next(batches(1)))
        layer.sample = lambda labels: torch.arange(0, CLASSES)
    assert_same(plain, staged, 2, **TOLERANCE)
    plain, staged = build(False, 0.01), build(True, 0.01)
    assert_same(plain, staged, **TOLERANCE)


@pytest.mark.parametrize("corrected, rates", [(True, (0.2, 0.5, 1.0, 0.2)), (False, (0.2, 0.0, 0.5))])
def test_another_rate_while_rows_of_the_last_one_are_fetched(corrected, rates):
    plain, staged = build(False, sampling_correction=corrected), build(True, sampling_correction=corrected)
    for rate in rates:
        plain.sample_rate = staged.sample_rate = rate
        assert_same(plain, staged, 2, **TOLERANCE)


def test_a_loss_whose_centers_have_changed_since_is_an_error():
    plain, staged = build(False), build(True)
    (features, labels), (later, _) = batches(2)
    for layer in (plain, staged):
        layer(features.clone().requires_grad_(), labels).backward()
    first, second = (layer(later.requires_grad_(), labels) for layer in (plain, staged))
    torch.testing.assert_close(first, second, **TOLERANCE)
    staged.step(features, labels)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        second.backward()


def test_the_layer_computes_on_its_device_and_cannot_move():
    layer = PartialFC(margin_softmax=CosFace(), num_classes=5, embedding_size=E, on_host=True, device="meta")
    assert (layer.device.type, layer.weight.device.type) == ("meta", "cpu")
    with pytest.raises(ValueError, match="the centers are on the host"):
        layer.double()


def test_a_refused_step_changes_no_center_and_the_next_ones_equal_those_on_the_device():
    plain, staged = build(False), build(True)
    features, labels = next(batches(1))
    for layer in (plain, staged):
        layer.step(features, labels)
        layer.synchronize()
        before = layer.weight.clone()
        for wrong in ((features * np.nan, labels), (features, np.full(B, CLASSES))):
            with pytest.raises((FloatingPointError, ValueError)):
                layer.step(*wrong)
        layer.synchronize()
        assert torch.equal(layer.weight, before)
    assert_same(plain, staged, 3, **TOLERANCE)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the maximum over no centers
def test_a_sample_without_a_center():
    layers = [build(False), build(True)]
    for layer in layers:
        layer.requires_positives = False
        layer.sample = lambda labels: torch.arange(0)
    assert_same(*layers, 2, **TOLERANCE)


def load_files(layer, other):
    other.save_params()
    layer.load_params()


def load_sharded(layer, other):
    current, saved = ShardedState(layer).state_dict(), ShardedState(other).state_dict()
    layer._store._ahead.result()
    for name in layer.widths:
        current[name].copy_(saved[name])  # as torch.distributed.checkpoint does
    ShardedState(layer).load_state_dict({**current, "progress": saved["progress"]})


def set_rows(layer, other):
    for field in layer.widths:
        layer.copy_rows(field, [(0, other.rows(field).numpy().copy())])


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize(
    "load",
    [lambda layer, other: layer.load_state_dict(other.state_dict()), load_files, load_sharded, set_rows],
    ids=["state_dict", "files", "sharded", "rows"],
)
def test_what_is_loaded_after_a_step_outlasts_its_update(load, in_files, tmp_path, monkeypatch):
    """Rows of the last step are still being written back, and rows of the next one have been fetched."""
    put = host._put
    monkeypatch.setattr(host, "_put", lambda *arguments: time.sleep(0.02) or put(*arguments))
    make = partial(build, True, prefix=str(tmp_path), **({"folder": str(tmp_path / "bank")} if in_files else {}))
    layer, other = make(), make()
    for batch in batches(2):
        other.step(*batch)
    layer.step(*next(batches(1, seed=1)))
    load(layer, other)
    for field in layer.widths:
        assert torch.equal(layer.rows(field), other.rows(field))
    layer.sampler.restore(other.sampler.state())
    assert_same(layer, other, 2, **TOLERANCE)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_saving_uses_the_last_update(optimizer, tmp_path):
    make = partial(build, True, prefix=str(tmp_path), optimizer=optimizer)
    layer = make()
    for batch in batches(3):
        layer.step(*batch)
    layer.save_params()
    resumed = make(resume=True)
    resumed.sampler.restore(layer.sampler.state())
    assert_same(layer, resumed, 2, rtol=0, atol=0)
    layer.step(*next(batches(1)))
    (rows,) = TorchBank(layer).host_rows("weight", copied=True)
    layer.synchronize()
    assert np.array_equal(rows, layer.weight.detach())
