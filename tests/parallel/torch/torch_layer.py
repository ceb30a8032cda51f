"""A small Partial FC, the same at any number of ranks, and what its tests gather.

Shapes: G global batch, E embedding.
"""

import numpy as np
import torch

from partial_fc_torch import CombinedMarginLoss, PartialFC, PartialFC_V2
from partial_fc_torch.collectives import OF_PROCESS

G, E = 6, 4
RANK, SIZE = OF_PROCESS.rank, OF_PROCESS.size
LOCAL = slice(RANK * (G // SIZE), (RANK + 1) * (G // SIZE))  # this rank's rows of a global batch
LR = 0.1

MARGINS = {
    "arcface": (1.0, 0.5, 0.0),
    "cosface": (1.0, 0.0, 0.4),
    "sphereface": (1.5, 0.0, 0.0),
    "combined": (0.9, 0.4, 0.15),
    "past_pi": (2.0, 1.0, 0.1),
}


def build(classes, ratio=1.0, margins=MARGINS["arcface"], scale=8.0, embedding_size=E, **arguments):
    """Returns a PartialFC with the learning rate LR."""
    layer = PartialFC(
        margin_softmax=CombinedMarginLoss(scale, *margins),
        num_classes=classes,
        sample_rate=ratio,
        embedding_size=embedding_size,
        **arguments,
    )
    layer.learning_rate = LR
    return layer


def build_v2(classes, ratio=1.0, margins=MARGINS["arcface"], scale=8.0, embedding_size=E, **arguments):
    """Returns a PartialFC_V2."""
    return PartialFC_V2(CombinedMarginLoss(scale, *margins), embedding_size, classes, ratio, **arguments)


def all_ranks(rows):
    """Concatenates the rows of all ranks, tensors or arrays, which may have different lengths: an array."""
    own = rows.detach().numpy() if isinstance(rows, torch.Tensor) else rows
    return np.concatenate(OF_PROCESS.gather_object("rows", own.copy()))


def random_batch(classes, seed=7):
    """Returns features (G, E) float32 and labels (G,) of a global batch."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((G, E)).astype(np.float32), rng.integers(0, classes, G)
