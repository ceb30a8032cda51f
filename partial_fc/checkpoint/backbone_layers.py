"""The layers of the backbones that both trainers have, with their names in MXNet's and PyTorch's files.

Layers have the names of each framework's published models, which are older than this project. Networks have the names
of the PyTorch trainer, whose ``mbf`` (arcface_torch's) is another network than MXNet's.
"""

from collections.abc import Iterator
from typing import NamedTuple

# Units of the four stages of the residual networks (arXiv 1801.07698; r200 is [6, 26, 60, 6] in the published models).
UNITS = {
    "r18": (2, 2, 2, 2),
    "r34": (3, 4, 6, 3),
    "r50": (3, 4, 14, 3),
    "r100": (3, 13, 30, 3),
    "r124": (3, 13, 40, 5),
    "r200": (6, 26, 60, 6),
}
SMALL_UNITS = (2, 2, 2)
SHARED = (*UNITS, "small", "mobilefacenet")
MXNET_TO_TORCH = {"mbf": "mobilefacenet"}  # network of the MXNet trainer -> its name in PyTorch, if it differs
# For each stage of MobileFaceNet: MXNet's name of the block that halves the feature map, MXNet's prefix of the residual
# blocks, and the number of residual blocks.
MBF_STAGES = (("dconv_23", "res_3", 4), ("dconv_34", "res_4", 6), ("dconv_45", "res_5", 2))


class Layer(NamedTuple):
    """A layer with parameters."""

    kind: str  # a key of `ARRAYS`
    mxnet: str  # name in MXNet
    torch: str  # name in PyTorch


# Kind of a layer -> MXNet's array -> PyTorch's array.
_WEIGHT = {"arg:{}_weight": "{}.weight"}
ARRAYS = {
    "conv": _WEIGHT,
    "dense": {**_WEIGHT, "arg:{}_bias": "{}.bias"},
    "prelu": {"arg:{}_gamma": "{}.weight"},
    "batch_norm": {
        "arg:{}_gamma": "{}.weight",
        "arg:{}_beta": "{}.bias",
        "aux:{}_moving_mean": "{}.running_mean",
        "aux:{}_moving_var": "{}.running_var",
    },
}


def layers(network: str) -> list[Layer]:
    """Returns the layers of a network, from the convolution of the pixels to the batch norm of the embedding.

    Raises:
        ValueError: Only one trainer has the network, or none.
    """
    if network not in SHARED:
        raise ValueError(
            f"{network} is not a network of both trainers, MXNet's and PyTorch's: take weights of one framework"
        )
    if network in UNITS:
        return [*_residual(UNITS[network]), *_HEAD]
    if network == "small":
        return [*_small(), *_HEAD]
    return list(_mobilefacenet())


_HEAD = (Layer("batch_norm", "bn1", "bn2"), Layer("dense", "pre_fc1", "fc"), Layer("batch_norm", "fc1", "features"))


def _residual(units: tuple[int, ...]) -> Iterator[Layer]:
    yield Layer("conv", "conv0", "conv1")
    yield Layer("batch_norm", "bn0", "bn1")
    yield Layer("prelu", "relu0", "prelu")
    for stage, count in enumerate(units, start=1):
        for unit in range(count):
            mxnet, torch = f"stage{stage}_unit{unit + 1}", f"layer{stage}.{unit}"
            yield Layer("batch_norm", f"{mxnet}_bn1", f"{torch}.bn1")
            yield Layer("conv", f"{mxnet}_conv1", f"{torch}.conv1")
            yield Layer("batch_norm", f"{mxnet}_bn2", f"{torch}.bn2")
            yield Layer("prelu", f"{mxnet}_relu1", f"{torch}.prelu")
            yield Layer("conv", f"{mxnet}_conv2", f"{torch}.conv2")
            yield Layer("batch_norm", f"{mxnet}_bn3", f"{torch}.bn3")
            if unit == 0:
                yield Layer("conv", f"{mxnet}_conv1sc", f"{torch}.downsample.0")
                yield Layer("batch_norm", f"{mxnet}_sc", f"{torch}.downsample.1")


def _small() -> Iterator[Layer]:
    yield Layer("conv", "conv0", "conv1")
    yield Layer("batch_norm", "bn0", "bn1")
    for stage, count in enumerate(SMALL_UNITS, start=1):
        for unit in range(count):
            yield Layer("conv", f"stage{stage}_unit{unit + 1}_conv1", f"layer{stage}.{unit}.conv1")
            yield Layer("batch_norm", f"stage{stage}_unit{unit + 1}_bn1", f"layer{stage}.{unit}.bn1")


def _mobilefacenet() -> Iterator[Layer]:
    yield from _mbf_conv("conv_1", "layers.0")
    yield from _mbf_conv("conv_2_dw", "layers.1")
    for number, (down, residual, blocks) in enumerate(MBF_STAGES, start=1):
        yield from _mbf_bottleneck(down, f"layers.{2 * number}")
        for block in range(blocks):
            yield from _mbf_bottleneck(f"{residual}_block{block}", f"layers.{2 * number + 1}.layers.{block}")
    yield from _mbf_conv("conv_6sep", "conv_sep")
    yield from _mbf_linear("conv_6dw7_7", "features.layers.0")
    yield Layer("dense", "pre_fc1", "features.layers.2")
    yield Layer("batch_norm", "fc1", "features.layers.3")


def _mbf_linear(mxnet: str, torch: str) -> Iterator[Layer]:
    yield Layer("conv", f"{mxnet}_conv2d", f"{torch}.layers.0")
    yield Layer("batch_norm", f"{mxnet}_batchnorm", f"{torch}.layers.1")


def _mbf_conv(mxnet: str, torch: str) -> Iterator[Layer]:
    yield from _mbf_linear(mxnet, torch)
    yield Layer("prelu", f"{mxnet}_relu", f"{torch}.layers.2")


def _mbf_bottleneck(mxnet: str, torch: str) -> Iterator[Layer]:
    yield from _mbf_conv(f"{mxnet}_conv_sep", f"{torch}.layers.0")
    yield from _mbf_conv(f"{mxnet}_conv_dw", f"{torch}.layers.1")
    yield from _mbf_linear(f"{mxnet}_conv_proj", f"{torch}.layers.2")
