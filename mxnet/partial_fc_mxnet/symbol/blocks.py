"""The pieces every backbone is put together from.

Legend: B images in a batch, C channels, (H, W) height and width. Feature maps are (B, C, H, W), float32 or float16.

Parameters take the name of their layer: ``<name>_weight``, ``<name>_bias``, ``<name>_gamma``, ``<name>_beta``,
``<name>_moving_mean``, ``<name>_moving_var``. Weight decay goes by these endings (`_weight` and `_gamma` decay).
"""

from __future__ import annotations

from typing import NamedTuple

import mxnet as mx

# The published models of the field were trained with these two numbers: their moving statistics only fit with both.
BN_EPS = 2e-5
BN_MOMENTUM = 0.9

ACTIVATIONS = ("prelu", "relu", "sigmoid", "softrelu", "softsign", "tanh")


class Style(NamedTuple):
    """What a user may choose about all blocks of a network at once.

    net_se: squeeze-and-excitation after the last convolution of a block.
    net_act: one of `ACTIVATIONS`.
    bn_mom: share of the old moving statistics kept at each step, in [0, 1).
    fp16: everything between the input and the head in float16. MXNet then makes the weights of convolutions and the
        slopes of PReLUs float16 too; scales, offsets and statistics of batch norms stay float32.
    """

    net_se: bool = False
    net_act: str = "prelu"
    bn_mom: float = BN_MOMENTUM
    fp16: bool = False


def normalized_input(style: Style) -> mx.sym.Symbol:
    """The variable `data`, RGB 0..255, brought to about -1..1 inside the network.

    A saved model then takes the pixels as they are decoded, and nobody can forget the step.
    """
    data = (mx.sym.Variable("data") - 127.5) * 0.0078125
    # After it, not before: float16 is finest around 0. (Whole pixel values are exact either way.)
    return mx.sym.Cast(data, dtype="float16", name="data_fp16") if style.fp16 else data


def conv(data, filters: int, name: str, kernel: int = 3, stride: int = 1, groups: int = 1, pad: int | None = None):
    """Convolution without bias (a batch norm follows it). `pad` None keeps ceil(H / stride)."""
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


def batch_norm(data, name: str, style: Style, eps: float = BN_EPS, fix_gamma: bool = False, **variables):
    """Batch norm with a learnt scale, or with scale 1 when `fix_gamma`; `variables` stand in for its own."""
    return mx.sym.BatchNorm(data, fix_gamma=fix_gamma, eps=eps, momentum=style.bn_mom, name=name, **variables)


def activation(data, name: str, style: Style):
    """The network's activation. PReLU has one slope a channel, ``<name>_gamma`` (C,).

    MXNet's operator marks that slope with its own initializer, a constant 0.25, so a module's global one
    (Xavier, say) does not set it to 1 as it does the `_gamma` of a batch norm.
    """
    if style.net_act == "prelu":
        return mx.sym.LeakyReLU(data, act_type="prelu", name=name)
    return mx.sym.Activation(data, act_type=style.net_act, name=name)


def squeeze_excite(data, filters: int, name: str, style: Style):
    """Scale each channel by a gate in (0, 1) computed from all channel means (Hu et al. 2018, arXiv 1709.01507)."""
    gate = mx.sym.Pooling(data, global_pool=True, kernel=(7, 7), pool_type="avg", name=name + "_se_pool1")
    gate = mx.sym.Convolution(gate, num_filter=filters // 16, kernel=(1, 1), name=name + "_se_conv1")
    gate = activation(gate, name + "_se_relu1", style)
    gate = mx.sym.Convolution(gate, num_filter=filters, kernel=(1, 1), name=name + "_se_conv2")
    gate = mx.sym.Activation(gate, act_type="sigmoid", name=name + "_se_sigmoid")
    return mx.sym.broadcast_mul(data, gate)
