"""Residual networks for faces, r18 to r200, with the layer names of the published state_dicts.

Pre-activation blocks "unit 3" of the ArcFace paper (arXiv 1801.07698, section 2.2): BN - conv - BN - PReLU - conv - BN
in the branch, nothing after the sum. The stem keeps the resolution of 112 x 112; each of the four stages halves it.
The head is BN - dropout - FC - BN.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from partial_fc.checkpoint.backbone_layers import UNITS

from .backbone import Backbone, Options, conv, last_batch_norm

STEM_FILTERS = 64
FILTERS = (64, 128, 256, 512)
CONV_STD = 0.1  # of the initial weights of every convolution, as in the training of the published models


class Unit(nn.Module):
    """A residual unit; with stride 2 it halves the map, and its shortcut is a 1x1 convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv(inputs, outputs)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.prelu = nn.PReLU(outputs)
        # The stride is in the second convolution, so that the first one sees the full resolution.
        self.conv2 = conv(outputs, outputs, stride=stride)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(conv(inputs, outputs, kernel=1, stride=stride), nn.BatchNorm2d(outputs))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """(B, inputs, H, W) -> (B, outputs, H / stride, W / stride)."""
        branch = self.prelu(self.bn2(self.conv1(self.bn1(data))))
        branch = self.bn3(self.conv2(branch))
        return branch + (data if self.downsample is None else self.downsample(data))


class IResNet(Backbone):
    """A residual network with ``units`` units in each of its four stages."""

    def __init__(self, options: Options, units: Sequence[int]):
        super().__init__(options)
        self.conv1 = conv(3, STEM_FILTERS)
        self.bn1 = nn.BatchNorm2d(STEM_FILTERS)
        self.prelu = nn.PReLU(STEM_FILTERS)
        inputs = STEM_FILTERS
        for stage, (count, outputs) in enumerate(zip(units, FILTERS), start=1):
            rest = (Unit(outputs, outputs, 1) for _ in range(count - 1))
            setattr(self, f"layer{stage}", nn.Sequential(Unit(inputs, outputs, 2), *rest))
            inputs = outputs
        self.bn2 = nn.BatchNorm2d(inputs)
        self.dropout = nn.Dropout(options.dropout)
        self.fc = nn.Linear(inputs * (options.image_size // 16) ** 2, options.num_features)
        self.features = last_batch_norm(options.num_features)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=CONV_STD)

    def body(self, images: torch.Tensor) -> torch.Tensor:
        """(B, 3, S, S) -> (B, 512, S / 16, S / 16)."""
        data = self.prelu(self.bn1(self.conv1(images)))
        return self.layer4(self.layer3(self.layer2(self.layer1(data))))

    def head(self, maps: torch.Tensor) -> torch.Tensor:
        """(B, 512, S / 16, S / 16) -> (B, E)."""
        return self.features(self.fc(self.dropout(self.bn2(maps).flatten(1))))


NETWORKS = {
    "r18": partial(IResNet, units=UNITS["r18"]),
    "r34": partial(IResNet, units=UNITS["r34"]),
    "r50": partial(IResNet, units=UNITS["r50"]),
    "r100": partial(IResNet, units=UNITS["r100"]),
    "r124": partial(IResNet, units=UNITS["r124"]),
    "r200": partial(IResNet, units=UNITS["r200"]),
}
