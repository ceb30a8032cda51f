"""MobileFaceNet (Chen et al. 2018, arXiv 1804.07573, table 1): inverted residual blocks, less than a million weights.

The layers are named as in the published models: ``<block>_conv2d``, ``<block>_batchnorm``, ``<block>_relu``.
"""

from .blocks import Style, activation, batch_norm, conv, normalized_input, squeeze_excite
from .head import FeatureMap

# The published models use MXNet's default here, unlike the residual networks.
EPS = 1e-3

# Per stage: name of the block that halves the map, name of its residual blocks, inner width of the halving block,
# output width, number of residual blocks, their inner width.
STAGES = (
    ("23", "3", 128, 64, 4, 128),
    ("34", "4", 256, 128, 6, 256),
    ("45", "5", 512, 128, 2, 256),
)
STEM_FILTERS = 64
OUT_FILTERS = 512


def body(style: Style) -> FeatureMap:
    """Returns the map before the head, (B, 512, H/16, W/16)."""
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
    """1x1 expansion, 3x3 depth-wise convolution, 1x1 projection without activation."""
    data = _conv(data, inner, name + "_conv_sep", style, kernel=1)
    data = _conv(data, inner, name + "_conv_dw", style, stride=stride, groups=inner)
    data = _linear(data, filters, name + "_conv_proj", style, kernel=1)
    return squeeze_excite(data, filters, name, style) if style.net_se else data
