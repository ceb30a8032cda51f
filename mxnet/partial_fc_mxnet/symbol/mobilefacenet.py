"""MobileFaceNet (Chen et al. 2018, arXiv 1804.07573, table 1): inverted residual blocks, under a million weights.

Layer names are those of the published models: ``<block>_conv2d``, ``<block>_batchnorm``, ``<block>_relu``.
"""

from __future__ import annotations

from .blocks import Style, activation, batch_norm, conv, normalized_input, squeeze_excite
from .head import FeatureMap

# This network's published models keep MXNet's own default here, unlike the residual ones.
EPS = 1e-3

# Names of the block that halves the map and of those after it; the former's inner width, the output width; how many
# residual blocks follow, and their inner width.
STAGES = (
    ("23", "3", 128, 64, 4, 128),
    ("34", "4", 256, 128, 6, 256),
    ("45", "5", 512, 128, 2, 256),
)
STEM_FILTERS = 64
OUT_FILTERS = 512


def body(style: Style) -> FeatureMap:
    """The map before the head, (B, 512, H/16, W/16)."""
    data = _conv(normalized_input(style), STEM_FILTERS, "conv_1", style, stride=2)
    data = _conv(data, STEM_FILTERS, "conv_2_dw", style, groups=STEM_FILTERS)
    for down, stage, wide, filters, repeats, inner in STAGES:
        data = _bottleneck(data, wide, filters, f"dconv_{down}", style, stride=2)
        for i in range(repeats):
            data = data + _bottleneck(data, inner, filters, f"res_{stage}_block{i}", style)
    return FeatureMap(_conv(data, OUT_FILTERS, "conv_6sep", style, kernel=1), OUT_FILTERS)


def _linear(data, filters: int, name: str, style: Style, **shape):
    return batch_norm(conv(data, filters, name + "_conv2d", **shape), name + "_batchnorm", style, eps=EPS)


def _conv(data, filters: int, name: str, style: Style, **shape):
    return activation(_linear(data, filters, name, style, **shape), name + "_relu", style)


def _bottleneck(data, inner: int, filters: int, name: str, style: Style, stride: int = 1):
    """Widen by 1x1, filter each channel by 3x3, project by 1x1 without activation."""
    data = _conv(data, inner, name + "_conv_sep", style, kernel=1)
    data = _conv(data, inner, name + "_conv_dw", style, stride=stride, groups=inner)
    data = _linear(data, filters, name + "_conv_proj", style, kernel=1)
    return squeeze_excite(data, filters, name, style) if style.net_se else data
