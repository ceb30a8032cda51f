"""A small Partial FC, the same on any number of ranks, and helpers of its tests.

Shapes: G global batch, E embedding.
"""

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, linear, normalize

import interpreted
from oracle import MARGINS
from partial_fc_torch import CombinedMarginLoss, PartialFC, PartialFC_V2
from partial_fc_torch.collectives import default_collectives
from partial_fc_torch.layer.margins import Margin

G, E = 6, 4
RANK, SIZE = default_collectives.rank, default_collectives.size
LOCAL = slice(RANK * (G // SIZE), (RANK + 1) * (G // SIZE))  # this rank's rows of a global batch
LR = 0.1
# Marks cases whose parts other cases combine: .ci/run runs them in one process, not on several ranks.
COMBINED_BELOW = [pytest.mark.thorough] if SIZE > 1 else []
# Arguments of a layer with kernels that compute the cosines, and that read them; in float32.
FUSED = {"layer_kernel": "triton", "layer_dtype": "tf32", "tile_classes": 3}
MM = {**FUSED, "layer_kernel": "mm"}


def build(classes, ratio=1.0, margins=MARGINS["arcface"], scale=8.0, embedding_size=E, **arguments):
    """Returns a PartialFC with the learning rate LR; margins are (m1, m2, m3) or a Margin."""
    layer = PartialFC(
        margin_softmax=margins if isinstance(margins, Margin) else CombinedMarginLoss(scale, *margins),
        num_classes=classes,
        sample_rate=ratio,
        embedding_size=embedding_size,
        **arguments,
    )
    layer.learning_rate = LR
    return interpreted.with_kernels(layer)


def build_v2(classes, ratio=1.0, margins=MARGINS["arcface"], scale=8.0, embedding_size=E, threshold=0.0, **arguments):
    """Returns a PartialFC_V2; margins as of `build`."""
    margin = margins if isinstance(margins, Margin) else CombinedMarginLoss(scale, *margins, threshold)
    return interpreted.with_kernels(PartialFC_V2(margin, embedding_size, classes, ratio, **arguments))


def all_ranks(rows):
    """Concatenates the rows of all ranks, tensors or arrays of any lengths, to an array."""
    local = rows.detach().numpy() if isinstance(rows, torch.Tensor) else rows
    return np.concatenate(default_collectives.gather_object("rows", local.copy()))


def random_batch(classes, seed=7):
    """Returns features (G, E) float32 and labels (G,) of a global batch."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((G, E)).astype(np.float32), rng.integers(0, classes, G)


def undivided(network, centers, batches, margin_loss, rates, momentum=0.9, weight_decay=5e-4, max_norm=0.0):
    """Trains the textbook formulation in one process in float64.

    Args:
        network: backbone in float32; a copy is trained.
        centers: (C, E).
        batches: iterable of global batches, inputs (G, ...) and labels (G,).
        margin_loss: CombinedMarginLoss.
        rates: maps the number of an update, counted from 1, to the learning rates of backbone and centers.
        momentum, weight_decay: of both.
        max_norm: clips the gradients of the backbone; 0 does not clip.

    Returns:
        (losses, network, centers), after all batches.
    """
    network = copy.deepcopy(network).double()
    centers = torch.from_numpy(centers).double().requires_grad_()
    groups = [{"params": list(network.parameters())}, {"params": [centers]}]
    optimizer = torch.optim.SGD(groups, momentum=momentum, weight_decay=weight_decay)
    losses = []
    for update, (inputs, labels) in enumerate(batches, 1):
        cosines = linear(normalize(network(inputs.double())), normalize(centers))
        loss = cross_entropy(margin_loss(cosines, labels), labels)
        optimizer.zero_grad()
        loss.backward()
        if max_norm:
            torch.nn.utils.clip_grad_norm_(network.parameters(), max_norm)
        for group, rate in zip(optimizer.param_groups, rates(update)):
            group["lr"] = rate
        optimizer.step()
        losses.append(loss.item())
    return losses, network, centers.detach().numpy()


def assert_same_training(found, expected):
    """Compares float32 (losses, network, centers) with the result of `undivided` after a few large steps."""
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4)
    for parameter, reference in zip(found[1].parameters(), expected[1].parameters()):
        np.testing.assert_allclose(parameter.detach(), reference.detach(), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-3, atol=1e-4)
