"""A small training on TorchEngine, the same backbone on every rank.

Shapes: E embedding.
"""

from functools import partial

import numpy as np
import torch
from torch import nn
from torch_layer import LR, RANK, E, build

from checkpoint_cases import BATCH, CLASSES, EPOCH, RATES_CHANGE, SHAPE, SmallTraining
from partial_fc.training.loop import LoopState, updates
from partial_fc_torch.backbones import Options
from partial_fc_torch.backbones.vit import Size, VisionTransformer
from partial_fc_torch.batches import dummy_tensors
from partial_fc_torch.data_parallel import data_parallel
from partial_fc_torch.engine import TorchEngine
from partial_fc_torch.optimizers import build_optimizer

MARGINS, SCALE = (1.0, 0.3, 0.1), 8.0


def small_backbone(width=E):
    """Maps pixels of SHAPE to embeddings, with dropout and running statistics."""
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(48, 6), nn.BatchNorm1d(6), nn.PReLU(), nn.Linear(6, width)
    )


def plain_backbone():
    """Maps pixels of SHAPE to embeddings, without dropout and running statistics, which differ between ranks."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 6), nn.PReLU(), nn.Linear(6, E))


def small_transformer(width=E):
    """Maps pixels (3, 32, 32) to embeddings; drops features, branches and patches, and recomputes activations."""
    torch.manual_seed(7)
    options = Options(width, dropout=0.3, fp16=False, image_size=32)
    return VisionTransformer(options, Size(width=16, depth=3, recompute=True), drop_path=0.5, mask=0.3)


def rates(num_update):
    """Learning rates of backbone and centers."""
    factor = 0.1 if num_update > RATES_CHANGE else 1.0
    return LR * factor, 2 * LR * factor


def build_engine(
    backbone,
    classes=CLASSES,
    ratio=1.0,
    momentum=0.9,
    width=E,
    folder=None,
    optimizer="sgd",
    margin=None,
    of_layer=None,
    backbone_optimizer="sgd",
    options=None,
    momentum_convention="gradients",
    schedule=rates,
    gradient_dtype=torch.float32,
    **arguments,
):
    """Returns the engine of this rank; ``folder`` keeps the centers in files, ``margin`` makes the margin."""
    margins = margin() if margin else MARGINS
    convention = {"momentum_convention": momentum_convention}
    of_layer = {"momentum": momentum, "optimizer": optimizer, "folder": folder, **convention, **(of_layer or {})}
    layer = build(classes, ratio, margins, SCALE, width, tile_classes=3, **of_layer)
    sgd_options = {"momentum": momentum, **convention}
    optimizer = partial(build_optimizer, name=backbone_optimizer, options=options, **sgd_options)
    model = data_parallel(backbone, layer, gradient_dtype)
    return TorchEngine(model, layer, schedule, optimizer=optimizer, **convention, **arguments)


def dummy_images(shape, batches, classes):
    """Dummy batches of this rank."""
    pixels = np.random.default_rng((0, RANK)).integers(0, 256, shape, np.uint8)
    return dummy_tensors(pixels, classes, 0, RANK, False, batches)


def dummy_batches(count, batch=BATCH):
    """Returns dummy batches of this rank, with images of SHAPE."""
    data = dummy_images((batch, *SHAPE), count, CLASSES)
    return [data.next() for _ in range(count)]


class Training(SmallTraining):
    """See SmallTraining."""

    def __init__(self, classes=CLASSES, momentum=0.9, width=E, make=small_backbone, shape=SHAPE, **arguments):
        self.engine = build_engine(make(width), classes, 0.5, momentum, width=width, **arguments)
        batch = arguments.get("gradient_acc", 1) * BATCH
        self.data = dummy_images((batch, *shape), EPOCH, classes)
        self.loop, self.losses = LoopState(), []

    def run(self, callbacks, steps, saved):
        if saved:
            saved.restore(self.engine, self.data, self.loop)
        for param in updates(self.engine, self.data, self.loop, steps):
            for callback in callbacks:
                callback(param)
