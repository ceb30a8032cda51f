"""Residual networks for faces: r18 to r200, and the grouped rx50 and rx101.

Pre-activation blocks "unit 3" of the ArcFace paper (arXiv 1801.07698, section 2.2): BN - conv - BN - act - conv - BN
in the branch, nothing after the sum. The stem keeps the resolution of 112 x 112; each of the four stages halves it.
The grouped blocks are ResNeXt 32x4d blocks (arXiv 1611.05431) with the same order of layers.

Layers are named as in the published models: conv0, bn0, relu0, stage<s>_unit<u>_{bn1,conv1,bn2,relu1,conv2,bn3,...}.
"""

from .blocks import Style, activation, batch_norm, conv, normalized_input, squeeze_excite
from .head import FeatureMap

PLAIN_FILTERS = (64, 128, 256, 512)
GROUPED_FILTERS = (256, 512, 1024, 2048)
STEM_FILTERS = 64
GROUPS = 32
# A fully connected layer on 7 x 7 x 2048 features of the grouped networks would have more weights than all the rest.
GROUPED_OUT = 512


def plain_body(style: Style, units: tuple[int, int, int, int]) -> FeatureMap:
    """Blocks of two 3x3 convolutions, `units` blocks per stage. The map is (B, 512, H/16, W/16)."""
    body = _stages(units, PLAIN_FILTERS, _plain_branch, style)
    return FeatureMap(body, PLAIN_FILTERS[-1])


def grouped_body(style: Style, units: tuple[int, int, int, int]) -> FeatureMap:
    """Bottleneck blocks around a 3x3 convolution in 32 groups. The map is (B, 512, H/16, W/16)."""
    body = _stages(units, GROUPED_FILTERS, _grouped_branch, style)
    body = batch_norm(conv(body, GROUPED_OUT, "convd", kernel=1), "bnd", style)
    return FeatureMap(activation(body, "relud", style), GROUPED_OUT)


def _stages(units, filters, branch, style: Style):
    body = batch_norm(conv(normalized_input(style), STEM_FILTERS, "conv0"), "bn0", style)
    body = activation(body, "relu0", style)
    for stage, (count, width) in enumerate(zip(units, filters), start=1):
        for unit in range(1, count + 1):
            body = _unit(body, branch, width, unit == 1, f"stage{stage}_unit{unit}", style)
    return body


def _unit(data, branch, filters: int, first: bool, name: str, style: Style):
    """Branch plus shortcut; the first unit of a stage halves the map, so its shortcut is a 1x1 convolution."""
    stride = 2 if first else 1
    body = branch(data, filters, stride, name, style)
    if style.net_se:
        body = squeeze_excite(body, filters, name, style)
    if not first:
        return body + data
    shortcut = conv(data, filters, name + "_conv1sc", kernel=1, stride=stride)
    return body + batch_norm(shortcut, name + "_sc", style)


def _plain_branch(data, filters: int, stride: int, name: str, style: Style):
    body = conv(batch_norm(data, name + "_bn1", style), filters, name + "_conv1")
    body = activation(batch_norm(body, name + "_bn2", style), name + "_relu1", style)
    # The second convolution has the stride, so that the first has the full resolution.
    return batch_norm(conv(body, filters, name + "_conv2", stride=stride), name + "_bn3", style)


def _grouped_branch(data, filters: int, stride: int, name: str, style: Style):
    inner = filters // 2
    body = conv(batch_norm(data, name + "_bn1", style), inner, name + "_conv1", kernel=1)
    body = activation(batch_norm(body, name + "_bn2", style), name + "_relu1", style)
    body = conv(body, inner, name + "_conv2", stride=stride, groups=GROUPS)
    body = activation(batch_norm(body, name + "_bn3", style), name + "_relu2", style)
    return batch_norm(conv(body, filters, name + "_conv3", kernel=1), name + "_bn4", style)
