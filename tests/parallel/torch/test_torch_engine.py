"""TorchEngine: a training on any number of ranks equals one process; running statistics, embedding, errors."""

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch_layer import LOCAL, RANK, SIZE, E, G, all_ranks, assert_same_training, undivided
from torch_training import MARGINS, SCALE, Training, build_engine, plain_backbone, rates, small_backbone

from checkpoint_cases import CLASSES, SHAPE, STEPS, equal
from partial_fc.data.batch import Batch
from partial_fc.training.callbacks import CallBackFinite
from partial_fc.training.loop import BatchEndParam
from partial_fc_torch import CombinedMarginLoss
from partial_fc_torch.collectives import default_collectives
from partial_fc_torch.pixels import normalized

LAST = SIZE - 1
PIXELS = np.random.default_rng(5).integers(0, 256, (3, 4, 4, 3), np.uint8).transpose(0, 3, 1, 2)


def batches(steps=10):
    """Global batches: images (G, 3, H, W) uint8 and labels (G,)."""
    rng = np.random.default_rng(2)
    for _ in range(steps):
        images = rng.integers(0, 256, (G, *SHAPE), np.uint8)
        yield torch.from_numpy(images), torch.from_numpy(rng.integers(0, CLASSES, G))


def local_batches(steps=10):
    """Returns this rank's part of `batches`."""
    return [Batch(images[LOCAL], labels[LOCAL].numpy()) for images, labels in batches(steps)]


@pytest.mark.parametrize("max_norm", [0.0, 0.2])
def test_training_on_all_ranks_equals_the_undivided_training(max_norm):
    engine = build_engine(plain_backbone(), max_grad_norm=max_norm)
    inputs = [(normalized(images), labels) for images, labels in batches()]
    start, margin_loss = all_ranks(engine.layer.weight), CombinedMarginLoss(SCALE, *MARGINS)
    expected = undivided(plain_backbone(), start, inputs, margin_loss, rates, max_norm=max_norm)
    losses = [float(engine.step(batch)) for batch in local_batches()]
    assert_same_training((losses, engine.backbone, all_ranks(engine.layer.weight)), expected)


@pytest.mark.world_size(2, 3)
def test_gradients_are_averaged_in_float16():
    """In the first step the momentum is the gradient. PyTorch's hook for bfloat16 needs GPUs."""
    changes, u = [], 2.0**-11
    for gradient_dtype in (torch.float32, torch.float16):
        engine, (batch,) = build_engine(plain_backbone(), gradient_dtype=gradient_dtype), local_batches(1)
        engine.step(batch)
        changes.append(engine.optimizer.states())
        content = b"".join(array.tobytes() for array in engine.parameters().values())
        assert len(set(default_collectives.gather_object("weights", content))) == 1
    for name, exact in changes[0].items():
        # The gradient of each rank and the sums are rounded: errors of u times a few times the largest element.
        error = np.abs(changes[1][name] - exact).max()
        assert 0 < error < 8 * SIZE * u * np.abs(exact).max(), name


class Own(nn.Module):
    """PyTorch does not compile a bare Sequential in DistributedDataParallel."""

    def __init__(self):
        super().__init__()
        self.net = small_backbone()
        self.net[1].p = 0.0  # a compiled dropout draws other random numbers

    def forward(self, images):
        return self.net(images)


@pytest.mark.slow
def test_a_compiled_backbone_trains_alike_under_the_same_names():
    plain, compiled = (build_engine(Own(), compiled=each) for each in (False, True))
    counters.clear()
    losses = [[float(engine.step(batch)) for batch in local_batches(4)] for engine in (plain, compiled)]
    assert counters["stats"]["unique_graphs"] >= 1
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    saved, expected = ({**engine.parameters(), **engine.statistics()} for engine in (compiled, plain))
    assert saved.keys() == expected.keys() and not any("_orig_mod" in name for name in saved)
    for name, array in expected.items():
        np.testing.assert_allclose(saved[name], array, rtol=1e-3, atol=1e-4, err_msg=name)
    other = build_engine(Own())
    other.restore(saved, 4)
    np.testing.assert_array_equal(other.embed(PIXELS), compiled.embed(PIXELS))


def test_each_rank_has_its_statistics_until_they_are_averaged():
    engine = Training().fit(3).engine
    parameters, of_ranks = engine.parameters(), default_collectives.gather_object("statistics", engine.statistics())
    assert sorted(of_ranks[0]) == ["aux:3.running_mean", "aux:3.running_var"]
    for name in of_ranks[0]:
        assert all((of_ranks[0][name] != other[name]).any() for other in of_ranks[1:])
    engine.average_statistics()
    for name, array in engine.statistics().items():
        np.testing.assert_allclose(array, np.mean([arrays[name] for arrays in of_ranks], axis=0), rtol=1e-6)
    equal(engine.parameters(), parameters)


def test_embedding_during_the_training_changes_nothing():
    training = Training(max_grad_norm=0.5)

    def embed(param):
        plain = training.engine.embed(PIXELS)
        assert plain.shape == (3, E) and plain.dtype == np.float32
        np.testing.assert_array_equal(training.engine.embed(PIXELS), plain)
        assert (training.engine.embed(PIXELS, batch_statistics=True) != plain).any()

    equal(training.fit(STEPS, callbacks=[embed]).everything(), Training(max_grad_norm=0.5).fit(STEPS).everything())


def test_a_nan_loss_stops_all_ranks_before_anything_changes():
    engine, (batch,) = build_engine(plain_backbone()), local_batches(1)
    if RANK == LAST:
        nn.init.constant_(engine.backbone[3].bias, np.nan)
    before, centers = engine.parameters(), engine.layer.weight.clone()
    with pytest.raises(FloatingPointError, match=rf"update 1 \(non-finite features on rank {LAST}\)"):
        engine.step(batch)
    equal(engine.parameters(), before)
    assert torch.equal(engine.layer.weight, centers) and engine.num_update == 0


def test_a_nan_parameter_is_named():
    engine = build_engine(plain_backbone())
    check = CallBackFinite(engine, frequent=1)
    check(BatchEndParam(0.0, 0, 0))
    nn.init.constant_(engine.backbone[3].bias, np.inf)
    with pytest.raises(FloatingPointError, match="3.bias is not finite after update 4"):
        check(BatchEndParam(0.0, 0, 4))


def test_a_parameter_without_gradients_is_named_in_the_first_step():
    """A single rank averages nothing, and trains the other parameters."""
    network, (batch,) = plain_backbone(), local_batches(1)
    network[1].unused = nn.Parameter(torch.ones(3))
    engine = build_engine(network)
    before = engine.parameters()
    if SIZE == 1:
        engine.step(batch)
        return
    with pytest.raises(ValueError, match=r"1\.unused"):
        engine.step(batch)
    equal(engine.parameters(), before)
