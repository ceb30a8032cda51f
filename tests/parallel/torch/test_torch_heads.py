"""Several heads on one backbone: a step by hand, checkpoints, other numbers of ranks.

Shapes: G global batch.
"""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear, normalize
from torch_layer import LOCAL, LR, SIZE, G, all_ranks, build
from torch_training import MARGINS, SCALE, Training, dummy_batches, dummy_images, plain_backbone, small_backbone

import checkpoint_cases
from checkpoint_cases import BATCH, CLASSES, EPOCH, SHAPE
from partial_fc.checkpoint import CheckpointFolder, read_manifest
from partial_fc.data.batch import Batch
from partial_fc.data.head_data import HeadData
from partial_fc.distributed.errors import JobError
from partial_fc.training.loop import LoopState
from partial_fc_torch import AdaFace, CombinedMarginLoss
from partial_fc_torch.data_parallel import data_parallel
from partial_fc_torch.engine import LayerHead, TorchEngine
from partial_fc_torch.optimizers import build_optimizer
from partial_fc_torch.pixels import normalized

OTHER, WEIGHT = 40, 0.3  # classes and weight of the second head; more classes than a batch has images


def rates(num_update):
    """Learning rates of the backbone and of both heads' centers."""
    return LR, 2 * LR, LR / 2


def build_engine(backbone, ratios=(1.0, 1.0), margin=MARGINS, classes=OTHER, of_layer=None, **arguments):
    """Returns the engine of this rank with two heads; ``margin`` is the second one's."""
    first = build(CLASSES, ratios[0], MARGINS, SCALE, tile_classes=3, **(of_layer or {}))
    second = build(classes, ratios[1], margin, SCALE, seed=5, optimizer="adamw" if ratios[1] < 1 else "sgd")
    heads = [LayerHead("a", first), LayerHead("b", second, WEIGHT)]
    model = data_parallel(backbone, first)
    return TorchEngine(model, first, rates, optimizer=partial(build_optimizer, momentum=0.9), heads=heads, **arguments)


class TwoHeads(Training):
    """See SmallTraining; the second set has more batches in an epoch than the first."""

    def __init__(self, gradient_acc=1, **arguments):
        self.engine = build_engine(small_backbone(), (0.5, 0.7), AdaFace(SCALE), gradient_acc=gradient_acc, **arguments)
        classes = self.engine.heads[1].layer.num_classes
        batch = gradient_acc * BATCH
        sets = {"a": dummy_images((batch, *SHAPE), EPOCH, CLASSES), "b": dummy_images((2 * batch, *SHAPE), 5, classes)}
        self.data, self.loop, self.losses = HeadData(sets), LoopState(), []


def batches_of_both(steps=6):
    """Yields for each step the global batches of both heads; the second one's has twice the images."""
    rng = np.random.default_rng(2)
    for _ in range(steps):
        yield [
            (torch.from_numpy(rng.integers(0, 256, (n * G, *SHAPE), np.uint8)), torch.from_numpy(labels))
            for n, labels in ((1, rng.integers(0, CLASSES, G)), (2, rng.integers(0, OTHER, 2 * G)))
        ]


def undivided(network, centers, weights, max_norm):
    """Trains the textbook formulation of both heads in one process in float64."""
    network = copy.deepcopy(network).double()
    centers = [torch.from_numpy(each).double().requires_grad_() for each in centers]
    groups = [{"params": list(network.parameters())}, *({"params": [each]} for each in centers)]
    optimizer = torch.optim.SGD(groups, momentum=0.9, weight_decay=5e-4)
    margin_loss, losses = CombinedMarginLoss(SCALE, *MARGINS), []
    for update, batches in enumerate(batches_of_both(), 1):
        optimizer.zero_grad()
        losses.append([])
        for (images, labels), of_head, weight in zip(batches, centers, weights):
            cosines = linear(normalize(network(normalized(images).double())), normalize(of_head))
            loss = cross_entropy(margin_loss(cosines, labels), labels)
            (gradient,) = torch.autograd.grad(loss, [of_head], retain_graph=True)
            (weight * loss).backward()
            of_head.grad = gradient  # without the weight
            losses[-1].append(loss.item())
        if max_norm:
            nn.utils.clip_grad_norm_(network.parameters(), max_norm)
        for group, rate in zip(optimizer.param_groups, rates(update)):
            group["lr"] = rate
        optimizer.step()
    return np.array(losses), network, [each.detach().numpy() for each in centers]


@pytest.mark.parametrize("count, max_norm", [(1, 0.0), (1, 0.2), (2, 0.0)])
def test_a_step_adds_the_weighted_gradients_of_all_heads(count, max_norm):
    if G // SIZE % count:
        pytest.skip("the batch of a rank cannot be divided")
    engine = build_engine(plain_backbone(), max_grad_norm=max_norm, gradient_acc=count)
    layers = [head.layer for head in engine.heads]
    start = [all_ranks(layer.weight) for layer in layers]
    losses, totals = [], []
    for (images, labels), (other_images, other_labels) in batches_of_both():
        second = slice(2 * LOCAL.start, 2 * LOCAL.stop)
        batch = [Batch(images[LOCAL], labels[LOCAL].numpy())]
        batch.append(Batch(other_images[second], other_labels[second].numpy()))
        totals.append(float(engine.step(batch)))
        losses.append([float(engine.head_losses[name]) for name in ("a", "b")])
    expected, network, centers = undivided(plain_backbone(), start, (1.0, WEIGHT), max_norm)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    np.testing.assert_allclose(totals, expected @ [1.0, WEIGHT], rtol=1e-4)
    for parameter, reference in zip(engine.backbone.parameters(), network.parameters()):
        np.testing.assert_allclose(parameter.detach(), reference.detach(), rtol=1e-3, atol=1e-4)
    for layer, reference in zip(layers, centers):
        np.testing.assert_allclose(all_ranks(layer.weight), reference, rtol=1e-3, atol=1e-4)
    assert [layer.num_update for layer in layers] == [6, 6]


@pytest.mark.parametrize("count", [1, 2])
def test_the_ranks_average_the_gradients_once_in_an_update(count):
    engine = build_engine(plain_backbone(), gradient_acc=count)
    first, second = dummy_batches(2, count * BATCH)
    second = second._replace(labels=second.labels % OTHER)
    engine.step([first, second])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        engine.step([first, second])
    counts = {event.key: event.count for event in recorded.key_averages()}
    reductions = {1: 0, 2: 1}.get(SIZE, len(engine.optimizer.parameters))  # 2 ranks: one bucket; more: one by one
    assert counts.get("gloo:all_reduce", 0) == reductions


def test_the_margin_of_each_head_is_that_of_the_update():
    engine = build_engine(plain_backbone(), margin=AdaFace(SCALE))
    engine.heads[1] = engine.heads[1]._replace(margins=lambda num_update: AdaFace(SCALE, m=0.1 * num_update))
    first, second = dummy_batches(2)
    for update in (1, 2, 3):
        engine.step([first, second._replace(labels=second.labels % OTHER)])
        assert engine.heads[1].layer.margin.m == 0.1 * update
    assert engine.layer.margin.margins == MARGINS


@pytest.mark.parametrize("changes", [{}, {"autocast": torch.float16, "gradient_acc": 3}])
def test_a_resumed_training_equals_an_uninterrupted_one_bit_for_bit(folder, changes):
    folder = CheckpointFolder(folder, kept=9)
    make = partial(TwoHeads, max_grad_norm=0.5, **changes)
    checkpoint_cases.a_resumed_training_equals_an_uninterrupted_one(make, folder)
    (_, path), *_ = folder.complete()
    manifest = read_manifest(path)
    assert list(manifest.heads) == ["b"] and manifest.of_head("b").num_classes == OTHER
    assert {name for name in make().engine.parameters() if "margin:" in name} == {
        f"b.margin:{name}" for name in ("norm_mean", "norm_std")
    }


def test_other_heads_are_refused(folder):
    cases = [({"classes": OTHER + 3}, f"head b: it holds {OTHER} classes, .* set num_classes={OTHER}")]
    for number, (make, other, training) in enumerate([(TwoHeads, Training, "are none"), (Training, TwoHeads, "are b")]):
        own = CheckpointFolder(f"{folder}/{number}", kept=9)
        saved = checkpoint_cases.newest(make().fit(2, own, every=100), own)
        with pytest.raises(JobError, match=f"its heads after the first .* this training's {training}: set heads"):
            other().fit(4, saved=saved)
    checkpoint_cases.a_checkpoint_of_another_training_is_refused(TwoHeads, CheckpointFolder(folder, kept=9), cases)


@pytest.mark.world_size(1)
def test_each_head_is_saved_in_files_of_its_own(folder):
    training = TwoHeads().fit(1, CheckpointFolder(folder, kept=9), every=1)
    saved = checkpoint_cases.newest(training, CheckpointFolder(folder, kept=9))
    names = {name for name in saved.manifest.files if not name.startswith(("backbone", "rank"))}
    own = {"centers-00000.npy", "momentum-00000.npy"}
    states = {f"b.{name}-00000.npy" for name in ("centers", "state-weight_exp_avg", "state-weight_exp_avg_sq")}
    assert names - states >= own and names > own
    assert all(name.startswith("b.") for name in names - own)


def test_an_epoch_is_of_the_first_set_and_the_others_repeat():
    sets = {"a": dummy_images((2, *SHAPE), 3, CLASSES), "b": dummy_images((2, *SHAPE), 2, OTHER)}
    alone = dummy_images((2, *SHAPE), 2, OTHER)
    data, labels = HeadData(sets), []
    for _ in range(2):
        epoch = list(data)
        assert len(epoch) == 3
        labels += [batch[1].labels.tolist() for batch in epoch]
        data.reset()
    of_set = [batch.labels.tolist() for batch in alone]
    assert labels == 3 * of_set
    assert data.state() == {"epoch": 2, "images": 0, "heads": {"b": {"epoch": 2, "images": 2}}}


def test_an_error_in_a_step_names_the_head():
    """With its type, which decides how the job ends."""
    engine = build_engine(plain_backbone())
    first, second = dummy_batches(2)
    with pytest.raises(ValueError, match="^head b: .*label"):
        engine.step([first, second._replace(labels=second.labels + OTHER)])
    with torch.no_grad():
        engine.heads[1].layer.weight.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="^head b: "):
        engine.step([first, second._replace(labels=second.labels % OTHER)])


def test_an_error_in_a_set_names_the_head():
    sets = {"a": dummy_images((2, *SHAPE), 3, CLASSES), "b": dummy_images((2, *SHAPE), 2, OTHER)}
    data = HeadData(sets)
    sets["b"]._make_batch = lambda labels: open("/missing")
    with pytest.raises(FileNotFoundError, match="head b: No such file.*/missing"):
        data.next()
