"""The building blocks of the backbones.

Legend: B images in a batch, C channels, (H, W) height and width. Feature maps are (B, C, H, W), float32 or float16.

The parameters of a layer are named after it: ``<name>_weight``, ``<name>_bias``, ``<name>_gamma``, ``<name>_beta``,
``<name>_moving_mean``, ``<name>_moving_var``. These suffixes determine weight decay (`_weight` and `_gamma` decay).
"""

from typing import NamedTuple

import mxnet as mx

from partial_fc.checkpoint.model_format import MXNET

# The published face recognition models were trained with these values; their moving statistics require both.
BN_EPS = MXNET.eps
BN_MOMENTUM = 0.9

ACTIVATIONS = ("prelu", "relu", "sigmoid", "softrelu", "softsign", "tanh")


class Style(NamedTuple):
    """The settings that all blocks of a network share."""

    net_se: bool = False  # squeeze-and-excitation after the last convolution of a block
    net_act: str = "prelu"  # one of `ACTIVATIONS`
    bn_mom: float = BN_MOMENTUM  # weight of the old moving statistics in each step, in [0, 1)
    # float16 between the input and the head. Then the weights of convolutions and the slopes of PReLU are float16 too;
    # scales, offsets and statistics of batch norms stay float32.
    fp16: bool = False
    eps: float = BN_EPS  # this and the following: see partial_fc.checkpoint.ModelFormat
    pixel_scale: float = MXNET.pixel_scale


def normalized_input(style: Style) -> mx.sym.Symbol:
    """Returns the variable `data`, RGB 0..255, normalized to about -1..1.

    Normalization inside the network lets a saved model take decoded pixels directly.
    """
    data = (mx.sym.Variable("data") - 127.5) * (1 / style.pixel_scale)
    # The cast follows the normalization, because float16 is most precise around 0 (integer pixels are exact anyway).
    return mx.sym.Cast(data, dtype="float16", name="data_fp16") if style.fp16 else data


def conv(data, filters: int, name: str, kernel: int = 3, stride: int = 1, groups: int = 1, pad: int | None = None):
    """Convolution without bias, because a batch norm follows. `pad` None gives an output of ceil(H / stride)."""
    pad = kernel // 2 if pad is None else pad
    return mx.sym.Convolution(
        data,
        num_filter=filters,
        kernel=(kernel, kernel),
        stride=(stride, stride),
        pad=(pad, pad),
        num_group=groups,
        no_bias=True,
        name=name,
    )


def batch_norm(data, name: str, style: Style, eps: float | None = None, fix_gamma: bool = False, **variables):
    """Batch norm with a learned scale, or scale 1 with `fix_gamma`; `variables` replace its own parameters."""
    eps = style.eps if eps is None else eps
    return mx.sym.BatchNorm(data, fix_gamma=fix_gamma, eps=eps, momentum=style.bn_mom, name=name, **variables)


def activation(data, name: str, style: Style):
    """The activation of the network. PReLU has one slope per channel, ``<name>_gamma`` (C,).

    MXNet's operator gives the slope an initializer of its own, the constant 0.25, so that a module's global
    initializer does not set it to 1 like the `_gamma` of a batch norm.
    """
    if style.net_act == "prelu":
        return mx.sym.LeakyReLU(data, act_type="prelu", name=name)
    return mx.sym.Activation(data, act_type=style.net_act, name=name)


def squeeze_excite(data, filters: int, name: str, style: Style):
    """Scales each channel by a gate in (0, 1) that depends on all channel means (Hu et al. 2018, arXiv 1709.01507)."""
    gate = mx.sym.Pooling(data, global_pool=True, kernel=(7, 7), pool_type="avg", name=name + "_se_pool1")
    gate = mx.sym.Convolution(gate, num_filter=filters // 16, kernel=(1, 1), name=name + "_se_conv1")
    gate = activation(gate, name + "_se_relu1", style)
    gate = mx.sym.Convolution(gate, num_filter=filters, kernel=(1, 1), name=name + "_se_conv2")
    gate = mx.sym.Activation(gate, act_type="sigmoid", name=name + "_se_sigmoid")
    return mx.sym.broadcast_mul(data, gate)
