"""The problem that the programs of this folder train on: backbone, batches and settings.

Shapes: B local batch.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from partial_fc_torch import CosFace

STEPS, BATCH, CLASSES, EMBEDDING = 8, 32, 50, 64
RATE, MAX_NORM = 0.02, 5.0  # learning rate, and maximum norm of the backbone's gradient
DECAY = {"momentum": 0.9, "weight_decay": 5e-4}
MARGIN = CosFace(s=16)
LAYER: dict[str, Any] = {"margin_softmax": MARGIN, "num_classes": CLASSES, "embedding_size": EMBEDDING, **DECAY}


def rate_factor(step: int) -> float:
    """Returns the factor of the learning rates in a step; steps are counted from 0."""
    return 0.1 if step >= 5 else 1.0


def backbone() -> nn.Module:
    """Returns a network from images (B, 3, 32, 32) to embeddings (B, E), with the same weights in all processes."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 16, 5, stride=4, padding=2), nn.BatchNorm2d(16), nn.PReLU(16))
    return nn.Sequential(body, nn.Flatten(), nn.Linear(1024, EMBEDDING))


def batches(rank: int, steps: Iterable[int] = range(STEPS)) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields normalized images (B, 3, 32, 32) float32 and labels (B,) int64. Each class has a pattern, with noise.

    Args:
        rank: rank of this process.
        steps: numbers of the steps, from 0.
    """
    patterns = torch.randint(128, (CLASSES, 3, 32, 32), generator=torch.Generator().manual_seed(0))
    for step in steps:
        random = torch.Generator().manual_seed(1000 * rank + step)
        labels = torch.randint(CLASSES, (BATCH,), generator=random)
        pixels = patterns[labels] + torch.randint(128, (BATCH, 3, 32, 32), generator=random)
        yield pixels / 127.5 - 1, labels
