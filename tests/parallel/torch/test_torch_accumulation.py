"""gradient_acc: n micro-batches of B images equal one batch of nB, for a backbone without batch norms."""

import numpy as np
import pytest
import torch
from torch import nn
from torch_layer import COMBINED_BELOW, RANK, SIZE, E, all_ranks
from torch_training import build_engine, dummy_batches, plain_backbone

from checkpoint_cases import BATCH, CLASSES, equal
from partial_fc.data.batch import Batch
from partial_fc.distributed.errors import JobError
from partial_fc_torch import AdaFace, InterTopK, MagFace
from partial_fc_torch.layer.accumulation import Accumulation

COUNT, STEPS = 3, 6
FLOAT16 = {"autocast": torch.float16}


def batches(steps=STEPS):
    return dummy_batches(steps, COUNT * BATCH)


def trained(count, rate=None, **arguments):
    """Returns losses, arrays of the backbone, all centers with their states, and the sampler after STEPS updates."""
    engine = build_engine(plain_backbone(), gradient_acc=count, **arguments)
    if engine.loss_scale:
        engine.loss_scale.scale = 128.0
    if rate:
        engine.rates = lambda _: (rate, rate)
    losses = [float(engine.step(batch)) for batch in batches()]
    assert engine.num_update == STEPS
    centers = {name: all_ranks(engine.layer.rows(name)) for name in engine.layer.widths}
    return losses, engine.parameters(), centers, engine.layer.sampler.state()


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"ratio": 1.0}, marks=COMBINED_BELOW),
        {"ratio": 0.5, "max_grad_norm": 0.2},
        pytest.param({"ratio": 0.0}, marks=COMBINED_BELOW),
        {"ratio": 0.9, "of_layer": {"sampling_correction": True}},
        pytest.param({"ratio": 0.5, "of_layer": {"on_host": True}}, marks=COMBINED_BELOW),
        pytest.param({"ratio": 0.5, "optimizer": "adamw", "backbone_optimizer": "adamw"}, marks=COMBINED_BELOW),
        {"ratio": 0.5, "optimizer": "adagrad", "margin": MagFace},
        {"ratio": 0.5, "momentum_convention": "steps"},
        {"ratio": 0.5, "margin": InterTopK},
    ],
)
def test_micro_batches_equal_one_batch(arguments):
    rate = 0.01 if "backbone_optimizer" in arguments else None
    found, expected = trained(COUNT, rate, **arguments), trained(1, rate, **arguments)
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-5)
    for arrays, expected_arrays in zip(found[1:3], expected[1:3]):
        assert arrays.keys() == expected_arrays.keys()
        for name, array in expected_arrays.items():
            np.testing.assert_allclose(arrays[name], array, rtol=1e-3, atol=2e-5, err_msg=name)
    assert found[3] == expected[3]  # one sample per update


def test_an_overflow_in_one_micro_batch_skips_the_update_of_the_backbone_on_all_ranks():
    engine, (batch,) = build_engine(plain_backbone(), gradient_acc=COUNT, **FLOAT16), batches(1)
    nn.init.constant_(engine.backbone[3].weight, 1e-7)
    nn.init.zeros_(engine.backbone[3].bias)
    engine.loss_scale.scale = 2.0**24
    before, centers = engine.parameters(), engine.layer.weight.clone()
    engine.step(batch)
    equal(engine.parameters(), before)
    assert engine.loss_scale.skipped == 1 and (engine.layer.weight != centers).any()


def test_the_ranks_average_the_gradients_once_in_an_update():
    engine, (first, second) = build_engine(plain_backbone(), gradient_acc=COUNT), batches(2)
    engine.step(first)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        engine.step(second)
    counts = {event.key: event.count for event in recorded.key_averages()}
    reductions = {1: 0, 2: 1}.get(SIZE, len(engine.optimizer.parameters))  # 2 ranks: one bucket; more: one by one
    assert counts.get("gloo:all_reduce", 0) == reductions
    assert counts["aten::addmm"] >= COUNT  # the profile contains the update


def test_a_bad_label_is_the_same_error_on_all_ranks_and_changes_no_center():
    engine, (batch,) = build_engine(plain_backbone(), gradient_acc=COUNT), batches(1)
    if RANK == SIZE - 1:
        batch.labels[-1] = CLASSES  # of the last micro-batch
    centers = engine.layer.weight.clone()
    with pytest.raises(JobError, match=f"label {CLASSES} "):
        engine.step(batch)
    assert torch.equal(engine.layer.weight, centers) and engine.num_update == 0


def test_batches_that_do_not_fit_are_an_error_on_all_ranks():
    layer = build_engine(plain_backbone(), gradient_acc=COUNT).layer
    for wrong in (3, 0):
        with pytest.raises(JobError, match=f"{wrong} items cannot be divided"):
            Accumulation(layer, np.arange(wrong if RANK == SIZE - 1 else 4), 2)
    if SIZE > 1:
        with pytest.raises(ValueError, match="batch sizes are"):
            Accumulation(layer, np.arange(2 if RANK == 0 else 4), 2)


@pytest.mark.skipif(SIZE == 1, reason="needs another rank")
@pytest.mark.parametrize("number", [2, 3, 6])
@pytest.mark.parametrize("rank", [0, SIZE - 1])
def test_a_change_of_the_number_on_one_rank_is_an_error_on_all_that_names_the_rank(number, rank):
    engine, (first, second) = build_engine(plain_backbone(), gradient_acc=COUNT), batches(2)
    engine.step(first)
    centers, count = engine.layer.rows("weight").clone(), len(second.labels)
    if RANK == rank:
        second = Batch(second.inputs[:1].repeat(number, 1, 1, 1), np.resize(second.labels, number))
    with pytest.raises(JobError, match=f"had {count} .* has {number} items.* .rank {rank} of {SIZE}."):
        engine.step(second)
    assert torch.equal(engine.layer.rows("weight"), centers) and engine.num_update == 1
    engine.layer.step(torch.rand(count // COUNT, E), np.arange(count // COUNT))  # does not repeat the error
    assert engine.num_update == 2


@pytest.mark.skipif(SIZE == 1, reason="needs another rank")
def test_a_change_on_one_rank_beside_wrong_labels_on_all_others_hangs_nobody():
    layer = build_engine(plain_backbone(), gradient_acc=COUNT).layer
    Accumulation(layer, np.arange(4), 2)
    labels = np.arange(2) if RANK == 0 else np.full(4, CLASSES)
    with pytest.raises(ValueError, match=f"one has 2 items|label {CLASSES}"):
        Accumulation(layer, labels, 2).step(torch.rand(len(labels) // 2, E), labels[::2])


def test_steps_with_another_batch_between_two_updates():
    layer = build_engine(plain_backbone()).layer
    for size in (2, 3, 2):
        update = Accumulation(layer, np.arange(4), 2)
        for part in (slice(2), slice(2, 4)):
            update.step(torch.rand(2, E), np.arange(4)[part])
        update.update()
        layer.step(torch.rand(size, E), np.arange(size))
    assert layer.num_update == 6


def test_ranks_may_change_their_number_together():
    engine, (first, second) = build_engine(plain_backbone(), gradient_acc=COUNT), batches(2)
    engine.step(first)
    half = len(second.labels) // 2
    engine.step(Batch(second.inputs[:half], second.labels[:half]))
    engine.step(second)
    assert engine.num_update == 3
    if SIZE > 1:
        with pytest.raises(ValueError, match="batch sizes are"):
            Accumulation(engine.layer, np.arange(20 + 2 * RANK), 2)


def test_an_error_in_a_later_micro_batch_leaves_the_margin_as_it_was():
    engine = build_engine(plain_backbone(), margin=AdaFace)
    before = [buffer.clone() for buffer in engine.layer.margin.buffers()]
    update = Accumulation(engine.layer, np.arange(4), 2)
    update.step(torch.rand(2, E), np.arange(2))
    assert not all(map(torch.equal, before, engine.layer.margin.buffers()))
    with pytest.raises(FloatingPointError):
        update.step(torch.full((2, E), torch.nan), np.arange(2, 4))
    assert all(map(torch.equal, before, engine.layer.margin.buffers()))
