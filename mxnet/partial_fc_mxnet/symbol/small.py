"""The demo's network: the most verification accuracy a second of one CPU core.

Plain 3x3 convolutions with ReLU behind a stem that reduces the image four times at once. In a few minutes of training
the number of updates counts for more than the arithmetic in each: networks of twice the cost end lower.
Depth-wise convolutions train slower than their arithmetic says on a CPU, and PReLU 20 times slower than ReLU.
"""

from __future__ import annotations

from .blocks import Style, activation, batch_norm, conv, normalized_input, squeeze_excite
from .head import FeatureMap

# Multiples of 16: one AVX-512 register of float32 channels in oneDNN's blocked layout.
STEM_FILTERS = 16
FILTERS = (32, 64, 128)
# Side of the last map for 112 x 112 images: 112 -> 28 -> 14 -> 7 -> 4.
MAP_SIDE = 4


def body(style: Style) -> FeatureMap:
    """The map before the head, (B, 128, ceil(H/32), ceil(W/32))."""
    data = conv(normalized_input(style), STEM_FILTERS, "conv0", kernel=7, stride=4)
    data = activation(batch_norm(data, "bn0", style), "relu0", style)
    for stage, filters in enumerate(FILTERS, start=1):
        data = _unit(data, filters, f"stage{stage}_unit1", style, stride=2)
        data = _unit(data, filters, f"stage{stage}_unit2", style)
        if style.net_se:
            data = squeeze_excite(data, filters, f"stage{stage}", style)
    return FeatureMap(data, FILTERS[-1], MAP_SIDE)


def _unit(data, filters: int, name: str, style: Style, stride: int = 1):
    data = batch_norm(conv(data, filters, name + "_conv1", stride=stride), name + "_bn1", style)
    return activation(data, name + "_relu1", style)
