"""The network of the demo, chosen for the verification accuracy after a few minutes on one CPU core.

Plain 3x3 convolutions with ReLU follow a stem with stride 4. In a few minutes of training the number of updates
matters more than the capacity: networks of twice the cost reach a lower accuracy. On a CPU, depth-wise convolutions are
slower than their number of operations suggests, and PReLU is 20 times slower than ReLU.
"""

from .blocks import Style, activation, batch_norm, conv, normalized_input, squeeze_excite
from .head import FeatureMap

# Multiples of 16, the float32 channels of an AVX-512 register in oneDNN's blocked layout.
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
