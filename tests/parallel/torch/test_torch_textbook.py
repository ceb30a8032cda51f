"""Training with both modules equals the undivided textbook form under autograd, over several updates.

The backbone is averaged by DistributedDataParallel, so this is also the test of the scale of the features' gradient.
"""

import numpy as np
import pytest
import torch
from torch_layer import LOCAL, LR, SIZE, E, G, all_ranks, assert_same_training, build, build_v2, undivided

from oracle import MARGINS
from partial_fc_torch import CombinedMarginLoss

STEPS, CLASSES, D, SCALE = 5, 31, 8, 16.0
SGD = {"lr": LR, "momentum": 0.9, "weight_decay": 5e-4}


def batches():
    """Images (G, D) and labels (G,) of each step."""
    rng = np.random.default_rng(2)
    for _ in range(STEPS):
        yield torch.from_numpy(rng.standard_normal((G, D))).float(), torch.from_numpy(rng.integers(0, CLASSES, G))


def backbone():
    """A linear backbone, the same on all ranks."""
    torch.manual_seed(1)
    return torch.nn.Linear(D, E)


def divided(layer):
    """Losses, backbone and centers of a training on all ranks."""
    network = backbone()
    trained = torch.nn.parallel.DistributedDataParallel(network) if SIZE > 1 else network
    own = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    optimizer, losses = torch.optim.SGD([*network.parameters(), *own], **SGD), []
    for images, labels in batches():
        loss = layer(trained(images[LOCAL]), labels[LOCAL])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, network, all_ranks(layer.weight)


@pytest.mark.parametrize("name", MARGINS)
@pytest.mark.parametrize("builder", [build, build_v2])
def test_training_on_all_ranks_equals_the_undivided_training(builder, name):
    layer = builder(CLASSES, 1.0, MARGINS[name], SCALE, tile_classes=5)
    margin_loss = CombinedMarginLoss(SCALE, *MARGINS[name])
    expected = undivided(backbone(), all_ranks(layer.weight), batches(), margin_loss, lambda _: (LR, LR))
    assert_same_training(divided(layer), expected)
