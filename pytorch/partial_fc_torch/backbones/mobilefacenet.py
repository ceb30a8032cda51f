"""MobileFaceNet (Chen et al. 2018, arXiv 1804.07573, table 1): inverted residual blocks.

``mobilefacenet`` is the paper's network, with less than a million weights in its body; MXNet's trainer calls it mbf.
``mbf`` and ``mbf_large`` are arcface_torch's networks, whose maps have 2 and 4 times the channels. All of them have the
layer names of arcface_torch's state_dicts.
"""

from collections.abc import Iterable
from functools import partial

import torch
from torch import nn

from .backbone import Backbone, Options, conv, initialize_scaled, last_batch_norm

# MXNet's default, which MXNet's published models use in all batch norms but the embedding's.
MXNET_EPS = 1e-3

STEM_FILTERS = 64
# For each stage: inner width of the block that halves the map, output width, inner width of the residual blocks.
STAGES = ((128, 64, 128), (256, 128, 256), (512, 128, 256))
OUT_FILTERS = 512


class Layers(nn.Module):
    """A sequence of modules, named ``layers`` as in the published state_dicts."""

    def __init__(self, modules: Iterable[nn.Module], residual: bool = False):
        super().__init__()
        self.layers = nn.Sequential(*modules)
        self.residual = residual

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Returns the output of the last module, plus ``data`` in a residual block."""
        return data + self.layers(data) if self.residual else self.layers(data)


class MobileFaceNet(Backbone):
    """The network; ``features`` is its head.

    Args:
        options: see get_model.
        scale: factor of the maps' channels; does not apply inside the blocks.
        blocks: number of residual blocks before the first stage and in each stage. A 1 before the first stage selects a
            single depth-wise convolution.
        like_mxnet: uses MXNet's epsilon, a bias of the fully connected layer, and a frozen scale of the embedding.
    """

    def __init__(
        self,
        options: Options,
        scale: int = 1,
        blocks: tuple[int, int, int, int] = (1, 4, 6, 2),
        like_mxnet: bool = False,
    ):
        super().__init__(options)
        inputs, (first, *repeats) = scale * STEM_FILTERS, blocks
        # The number of groups is the paper's at any scale, so a group has ``scale`` channels.
        second = _conv(inputs, inputs, 3, groups=STEM_FILTERS) if first == 1 else _residual(inputs, STAGES[0][0], first)
        layers = [_conv(3, inputs, 3, stride=2), second]
        for (wide, filters, inner), count in zip(STAGES, repeats):
            layers.append(_bottleneck(inputs, wide, scale * filters, stride=2))
            inputs = scale * filters
            layers.append(_residual(inputs, inner, count))
        self.layers = nn.Sequential(*layers)
        self.conv_sep = _conv(inputs, OUT_FILTERS, 1)
        self.features = _global_depthwise(options, like_mxnet)
        initialize_scaled(self)
        for module in self.modules() if like_mxnet else ():
            if isinstance(module, nn.BatchNorm2d):
                module.eps = MXNET_EPS

    def body(self, images: torch.Tensor) -> torch.Tensor:
        """(B, 3, S, S) -> (B, 512, S / 16, S / 16)."""
        return self.conv_sep(self.layers(images))

    def head(self, maps: torch.Tensor) -> torch.Tensor:
        """(B, 512, S / 16, S / 16) -> (B, E)."""
        return self.features(maps)


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> Layers:
    return Layers([conv(inputs, outputs, kernel, stride, groups), nn.BatchNorm2d(outputs), nn.PReLU(outputs)])


def _bottleneck(inputs: int, inner: int, outputs: int, stride: int = 1, residual: bool = False) -> Layers:
    """1x1 expansion, 3x3 depth-wise convolution, 1x1 projection without activation."""
    project = Layers([conv(inner, outputs, 1), nn.BatchNorm2d(outputs)])
    return Layers([_conv(inputs, inner, 1), _conv(inner, inner, 3, stride, inner), project], residual)


def _residual(filters: int, inner: int, count: int) -> Layers:
    return Layers(_bottleneck(filters, inner, filters, residual=True) for _ in range(count))


def _global_depthwise(options: Options, like_mxnet: bool) -> Layers:
    """Returns the head: one weight for each channel and position of the last map, then FC - BN."""
    kernel = options.image_size // 16
    depthwise = nn.Conv2d(OUT_FILTERS, OUT_FILTERS, kernel, groups=OUT_FILTERS, bias=False)
    return Layers(
        [
            Layers([depthwise, nn.BatchNorm2d(OUT_FILTERS)]),
            nn.Sequential(nn.Flatten(), nn.Dropout(options.dropout)),
            nn.Linear(OUT_FILTERS, options.num_features, bias=like_mxnet),
            last_batch_norm(options.num_features) if like_mxnet else nn.BatchNorm1d(options.num_features),
        ]
    )


NETWORKS = {
    "mobilefacenet": partial(MobileFaceNet, like_mxnet=True),
    "mbf": partial(MobileFaceNet, scale=2),
    "mbf_large": partial(MobileFaceNet, scale=4, blocks=(2, 8, 12, 4)),
}
