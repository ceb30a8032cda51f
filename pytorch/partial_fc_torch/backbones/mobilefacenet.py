"""MobileFaceNet (Chen et al. 2018, arXiv 1804.07573, table 1): inverted residual blocks, less than a million weights.

It is the network of MXNet's trainer. Its layers are named as in arcface_torch's state_dicts of ``mbf``, whose network
is twice as wide and has no bias before the last batch norm: those files fit neither MXNet's network nor this one.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from .backbone import Backbone, Options, conv, initialize_scaled, last_batch_norm

# MXNet's default, with which the published models of MXNet were trained; only the batch norm of the embedding differs.
EPS = 1e-3

STEM_FILTERS = 64
# Per stage: inner width of the block that halves the map, output width, number and inner width of the residual blocks.
STAGES = ((128, 64, 4, 128), (256, 128, 6, 256), (512, 128, 2, 256))
OUT_FILTERS = 512


class Layers(nn.Module):
    """Modules in a row, under the name ``layers`` as in the published state_dicts."""

    def __init__(self, modules: Iterable[nn.Module], residual: bool = False):
        super().__init__()
        self.layers = nn.Sequential(*modules)
        self.residual = residual

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Returns the output of the last module, plus ``data`` in a residual block."""
        return data + self.layers(data) if self.residual else self.layers(data)


class MobileFaceNet(Backbone):
    """The network; ``features`` is its head."""

    def __init__(self, options: Options):
        super().__init__(options)
        stem = _conv(3, STEM_FILTERS, 3, stride=2)
        layers = [stem, _conv(STEM_FILTERS, STEM_FILTERS, 3, groups=STEM_FILTERS)]
        inputs = STEM_FILTERS
        for wide, outputs, repeats, inner in STAGES:
            layers.append(_bottleneck(inputs, wide, outputs, stride=2))
            layers.append(Layers(_bottleneck(outputs, inner, outputs, residual=True) for _ in range(repeats)))
            inputs = outputs
        self.layers = nn.Sequential(*layers)
        self.conv_sep = _conv(inputs, OUT_FILTERS, 1)
        self.features = _global_depthwise(options)
        initialize_scaled(self)

    def body(self, images: torch.Tensor) -> torch.Tensor:
        """(B, 3, S, S) -> (B, 512, S / 16, S / 16)."""
        return self.conv_sep(self.layers(images))

    def head(self, maps: torch.Tensor) -> torch.Tensor:
        """(B, 512, S / 16, S / 16) -> (B, E)."""
        return self.features(maps)


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> Layers:
    norm = nn.BatchNorm2d(outputs, eps=EPS)
    return Layers([conv(inputs, outputs, kernel, stride, groups), norm, nn.PReLU(outputs)])


def _bottleneck(inputs: int, inner: int, outputs: int, stride: int = 1, residual: bool = False) -> Layers:
    """1x1 expansion, 3x3 depth-wise convolution, 1x1 projection without activation."""
    project = Layers([conv(inner, outputs, 1), nn.BatchNorm2d(outputs, eps=EPS)])
    return Layers([_conv(inputs, inner, 1), _conv(inner, inner, 3, stride, inner), project], residual)


def _global_depthwise(options: Options) -> Layers:
    """One weight per channel and position of the last map, then FC - BN."""
    kernel = options.image_size // 16
    weigh = nn.Conv2d(OUT_FILTERS, OUT_FILTERS, kernel, groups=OUT_FILTERS, bias=False)
    return Layers(
        [
            Layers([weigh, nn.BatchNorm2d(OUT_FILTERS, eps=EPS)]),
            nn.Sequential(nn.Flatten(), nn.Dropout(options.dropout)),
            nn.Linear(OUT_FILTERS, options.num_features),
            last_batch_norm(options.num_features),
        ]
    )
