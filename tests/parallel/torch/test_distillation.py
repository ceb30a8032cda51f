"""Distillation: a step by hand, on any number of ranks, and a resumed training.

Shapes: G global batch.
"""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy, linear, normalize
from torch_layer import LOCAL, LR, SIZE, E, G, all_ranks
from torch_training import MARGINS, SCALE, Training, build_engine, plain_backbone

import checkpoint_cases
from checkpoint_cases import CLASSES, SHAPE
from partial_fc.checkpoint import CheckpointFolder
from partial_fc.data.batch import Batch
from partial_fc_torch import CombinedMarginLoss
from partial_fc_torch.collectives import default_collectives
from partial_fc_torch.engine import LayerHead
from partial_fc_torch.onnx_export import OnnxExport
from partial_fc_torch.pixels import normalized
from partial_fc_torch.teacher import Distillation, Teacher

SOFTMAX, WEIGHT = 0.3, 2.0


def teacher_network():
    torch.manual_seed(11)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 9), nn.Tanh(), nn.Linear(9, E)).eval()


@pytest.fixture
def distillation(tmp_path):
    """A teacher that onnxruntime runs."""
    path = tmp_path / "teacher.onnx"
    examples = np.random.default_rng(0).integers(0, 256, (2, *SHAPE), np.uint8)
    path.write_bytes(OnnxExport(teacher_network(), examples)(num_update=0))
    return Distillation(Teacher(str(path), True, torch.device("cpu")), WEIGHT, default_collectives)


def batches_of_all(steps=5):
    rng = np.random.default_rng(2)
    for _ in range(steps):
        images, labels = rng.integers(0, 256, (G, *SHAPE), np.uint8), rng.integers(0, CLASSES, G)
        yield torch.from_numpy(images), torch.from_numpy(labels)


def undivided(network, centers, center_rate):
    """Trains the textbook formulation in one process in float64; returns both losses of each step, and the result."""
    network, teacher = copy.deepcopy(network).double(), teacher_network().double()
    centers = torch.from_numpy(centers).double().requires_grad_()
    groups = [{"params": list(network.parameters()), "lr": LR}, {"params": [centers], "lr": center_rate}]
    optimizer = torch.optim.SGD(groups, momentum=0.9, weight_decay=5e-4)
    margin_loss, losses = CombinedMarginLoss(SCALE, *MARGINS), []
    for images, labels in batches_of_all():
        pixels = normalized(images).double()
        features = network(pixels)
        softmax = cross_entropy(margin_loss(linear(normalize(features), normalize(centers)), labels), labels)
        distance = 1 - cosine_similarity(features, teacher(pixels).detach()).mean()
        optimizer.zero_grad()
        (gradient,) = torch.autograd.grad(softmax, [centers], retain_graph=True)
        (SOFTMAX * softmax + WEIGHT * distance).backward()
        centers.grad = gradient  # without the weight
        optimizer.step()
        losses.append([softmax.item(), distance.item()])
    return np.array(losses), network, centers.detach().numpy()


@pytest.mark.parametrize("count, center_rate", [(1, 2 * LR), (3, 2 * LR), (1, 0.0)])
def test_a_step_adds_the_gradient_of_the_cosine_distance(distillation, count, center_rate):
    if G // SIZE % count:
        pytest.skip("the batch of a rank cannot be divided")
    arguments = {"schedule": lambda num_update: (LR, center_rate), "gradient_acc": count}
    engine = build_engine(plain_backbone(), distillation=distillation, **arguments)
    engine.heads = [LayerHead("", engine.layer, SOFTMAX)]
    start = all_ranks(engine.layer.weight)
    losses, totals = [], []
    for images, labels in batches_of_all():
        totals.append(float(engine.step(Batch(images[LOCAL], labels[LOCAL].numpy()))))
        losses.append([float(engine.head_losses[name]) for name in ("softmax", "teacher")])
    expected, network, centers = undivided(plain_backbone(), start, center_rate)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    np.testing.assert_allclose(totals, expected @ [SOFTMAX, WEIGHT], rtol=1e-4)
    for parameter, reference in zip(engine.backbone.parameters(), network.parameters()):
        np.testing.assert_allclose(parameter.detach(), reference.detach(), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(all_ranks(engine.layer.weight), centers, rtol=1e-3, atol=1e-4)
    if not center_rate:
        np.testing.assert_array_equal(all_ranks(engine.layer.weight), start)


@pytest.mark.parametrize("changes", [{}, {"autocast": torch.float16, "gradient_acc": 2}])
def test_a_resumed_training_equals_an_uninterrupted_one_bit_for_bit(distillation, folder, changes):
    def make():
        return Training(distillation=distillation, **changes)

    checkpoint_cases.a_resumed_training_equals_an_uninterrupted_one(make, CheckpointFolder(folder, kept=9))
