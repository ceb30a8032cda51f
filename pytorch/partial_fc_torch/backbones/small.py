"""The network of the demo, the same as MXNet's; mxnet/partial_fc_mxnet/symbol/small.py explains its design.

Plain 3x3 convolutions with ReLU after a stem with stride 4, then BN - dropout - FC - BN.
"""

import torch
from torch import nn
from torch.nn.functional import relu

from .backbone import Backbone, Options, conv, initialize_scaled, last_batch_norm

STEM_FILTERS = 16


class Unit(nn.Module):
    """Convolution, batch norm, ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = conv(inputs, outputs, stride=stride)
        self.bn1 = nn.BatchNorm2d(outputs)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """(B, inputs, H, W) -> (B, outputs, ceil(H / stride), ceil(W / stride))."""
        return relu(self.bn1(self.conv1(data)))


class Small(Backbone):
    """Seven convolutions, 1.3 million weights for E = 512."""

    FILTERS = (32, 64, 128)  # of the stages

    def __init__(self, options: Options):
        super().__init__(options)
        self.conv1 = conv(3, STEM_FILTERS, kernel=7, stride=4)
        self.bn1 = nn.BatchNorm2d(STEM_FILTERS)
        inputs = STEM_FILTERS
        for stage, outputs in enumerate(self.FILTERS, start=1):
            setattr(self, f"layer{stage}", nn.Sequential(Unit(inputs, outputs, 2), Unit(outputs, outputs, 1)))
            inputs = outputs
        self.bn2 = nn.BatchNorm2d(inputs)
        self.dropout = nn.Dropout(options.dropout)
        side = -(-options.image_size // 32)
        self.fc = nn.Linear(inputs * side**2, options.num_features)
        self.features = last_batch_norm(options.num_features)
        # A frozen offset keeps the mean embedding of a batch at zero. With a learned one, ArcFace first pulls all
        # embeddings into one cone before it separates identities, which takes as long as the whole demo.
        self.features.bias.requires_grad = False
        initialize_scaled(self)

    def body(self, images: torch.Tensor) -> torch.Tensor:
        """(B, 3, S, S) -> (B, 128, ceil(S / 32), ceil(S / 32))."""
        return self.layer3(self.layer2(self.layer1(relu(self.bn1(self.conv1(images))))))

    def head(self, maps: torch.Tensor) -> torch.Tensor:
        """(B, 128, ceil(S / 32), ceil(S / 32)) -> (B, E)."""
        return self.features(self.fc(self.dropout(self.bn2(maps).flatten(1))))


NETWORKS = {"small": Small}
