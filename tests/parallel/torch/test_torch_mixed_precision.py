"""A backbone in bfloat16 or float16: close to float32, with the same loss scale on all ranks.

These tests train in float16 on CPUs, although users are only offered bfloat16 there, which is faster.
"""

import logging

import numpy as np
import pytest
import torch
from torch import nn
from torch_layer import RANK, SIZE, E
from torch_training import build_engine, dummy_batches

from checkpoint_cases import equal
from partial_fc.layer.loss_scale import GIVE_UP_AFTER
from partial_fc_torch.collectives import default_collectives

LAST = SIZE - 1


def build(autocast, **arguments):
    """Returns an engine without biases, so that small pixels give short embeddings."""
    torch.manual_seed(3)
    linear = nn.Linear(48, 8, bias=False), nn.Linear(8, E, bias=False)
    return build_engine(nn.Sequential(nn.Flatten(), linear[0], nn.PReLU(), linear[1]), autocast=autocast, **arguments)


def gray(batch):
    """Returns the batch with pixels 1/255 from 0, whose short embeddings have a hundred times the gradient."""
    images = torch.full_like(batch.inputs, 127)
    images[:, :, ::2] = 128
    return batch._replace(inputs=images)


def same_on_all_ranks(value):
    first, *others = default_collectives.gather_object("value", value)
    return all(other == first for other in others)


@pytest.mark.parametrize("autocast, difference", [(torch.bfloat16, 0.4), (torch.float16, 0.08)])
def test_training_is_close_to_float32(autocast, difference):
    losses = []
    for dtype in (None, autocast):
        engine = build(dtype)
        engine.rates = lambda _: (0.01, 0.01)  # larger ones make the roundings of the first steps grow
        assert (engine.loss_scale is None) == (dtype != torch.float16)
        if engine.loss_scale:
            engine.loss_scale.scale = 128.0
        losses.append([float(engine.step(batch)) for batch in dummy_batches(20)])
        assert {array.dtype for array in engine.parameters().values()} == {np.dtype(np.float32)}
        assert engine.embed(np.zeros((2, 3, 4, 4), np.uint8)).dtype == np.float32
        assert engine.loss_scale is None or engine.loss_scale.scale == 128.0
    # Losses are about 9; roundings of 2^-9 and 2^-12 of an embedding change logits at s = 8, and add up.
    assert 0 < np.abs(np.subtract(*losses)).max() < difference


@pytest.mark.parametrize("max_norm", [0.0, 0.2])
def test_the_loss_scale_changes_neither_gradient_nor_clipping(max_norm):
    """In bfloat16, whose range is that of float32, scaling by powers of two is exact."""
    engines = [build(torch.float16, max_grad_norm=max_norm) for _ in range(2)]
    for engine, scale in zip(engines, (1.0, 4096.0)):
        engine.autocast, engine.loss_scale.scale = torch.bfloat16, scale
        for batch in dummy_batches(3):
            engine.step(batch)
    equal(engines[0].parameters(), engines[1].parameters())


@pytest.mark.parametrize("options", [{}, {"fused": True}])
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_an_overflow_on_one_rank_is_skipped_on_all(name, options, caplog):
    """By the host, or, as on GPUs, by a fused optimizer, whose result the host reads later."""
    caplog.set_level(logging.INFO)
    engine, data = build(torch.float16, backbone_optimizer=name, options=options), dummy_batches(3)
    assert engine.optimizer.skips_overflows == bool(options)
    engine.loss_scale.scale = 256.0
    engine.step(data[0])
    engine.wait_for_update()
    assert engine.loss_scale.scale == 256.0
    before, centers = engine.parameters(), engine.layer.weight.clone()
    engine.step(gray(data[1]) if RANK == LAST else data[1])
    assert (engine.loss_scale.scale == 128.0) == (not options)
    engine.wait_for_update()
    equal(engine.parameters(), before)
    assert (engine.loss_scale.scale, engine.loss_scale.skipped) == (128.0, 1)
    assert same_on_all_ranks(engine.loss_scale.state())
    # The step counts, and its centers have been updated.
    assert engine.num_update == engine.layer.num_update == 2 and (engine.layer.weight != centers).any()
    message = "float16 overflow at update 2: step skipped, loss scale 256 -> 128"
    assert [record.getMessage() for record in caplog.records].count(message) == (RANK == 0)
    engine.step(data[2])
    engine.wait_for_update()
    after = engine.parameters()
    assert all((after[name] != before[name]).any() for name in after) and engine.loss_scale.skipped == 0
    assert same_on_all_ranks([array.tobytes() for array in after.values()])


@pytest.mark.parametrize("options", [{}, {"fused": True}])
def test_a_run_of_overflows_stops_all_ranks(options):
    engine, (batch,) = build(torch.float16, options=options), dummy_batches(1)
    if RANK == LAST:
        batch = gray(batch)
        nn.init.constant_(engine.backbone[1].weight, 1e-5)
    with pytest.raises(FloatingPointError, match="20 updates in a row overflowed"):
        for _ in range(GIVE_UP_AFTER + 1):
            engine.step(batch)
