"""Backbones as MXNet symbols, selected by name: ``get_symbol("r50", embedding_size=512)``.

Legend: B images in a batch, E embedding size, (H, W) image size.

Every backbone has the input `data`, float32 (B, 3, H, W), RGB 0..255, with H and W multiples of 16 (usually
112 x 112), and the output `fc1_output`, float32 (B, E). Initialize with
``mx.init.Xavier(rnd_type="gaussian", factor_type="out", magnitude=2)``; the scales of batch norms then start at 1 and
the slopes of PReLU at 0.25.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import mxnet as mx

from partial_fc.checkpoint.backbone_layers import UNITS
from partial_fc.checkpoint.model_format import MXNET
from partial_fc.utils.config import choose

from . import mobilefacenet, resnet, small
from .blocks import ACTIVATIONS, BN_EPS, BN_MOMENTUM, Style
from .head import HEADS, FeatureMap, embedding

__all__ = ["NETWORKS", "Network", "get_symbol"]


class Network(NamedTuple):
    """An entry of `NETWORKS`: the function of the body and the defaults of the network."""

    body: Callable[[Style], FeatureMap]
    net_act: str = "prelu"  # one of `ACTIVATIONS`
    net_output: str = "FC"  # one of `HEADS`
    centered: bool = False  # see `head.embedding`


NETWORKS: dict[str, Network] = {
    **{name: Network(partial(resnet.plain_body, units=units)) for name, units in UNITS.items()},
    "rx50": Network(partial(resnet.grouped_body, units=(3, 4, 6, 3))),
    "rx101": Network(partial(resnet.grouped_body, units=(3, 4, 23, 3))),
    "mbf": Network(mobilefacenet.body, net_output="GDC"),
    "small": Network(small.body, net_act="relu", centered=True),
}


def get_symbol(
    network: str,
    embedding_size: int = 512,
    *,
    net_se: bool = False,
    net_act: str | None = None,
    net_output: str | None = None,
    bn_mom: float = BN_MOMENTUM,
    fp16: bool = False,
    eps: float = BN_EPS,
    pixel_scale: float = MXNET.pixel_scale,
) -> mx.sym.Symbol:
    """Builds a backbone: `data` (B, 3, H, W) -> `fc1_output` (B, E).

    Layer names depend only on the arguments, not on earlier symbols.

    Args:
        network: a key of `NETWORKS`.
        embedding_size: E.
        net_se: squeeze-and-excitation in every block.
        net_act: one of `ACTIVATIONS`; None is the default of the network (PReLU; ReLU for `small`).
        net_output: head, "FC" (BN - FC - BN), "E" (BN - dropout - FC - BN), "GAP" (BN - act - average - FC - BN) or
            "GDC" (depth-wise convolution of the whole map - FC - BN); None is the default of the network ("FC"; "GDC"
            for `mbf`).
        bn_mom: momentum of the moving statistics of the batch norms.
        fp16: computes in float16 up to the head. Input, output, names and shapes are unchanged, so that parameters
            saved as float32 fit both. Only for GPUs: MXNet has no float16 convolutions on the CPU.
        eps, pixel_scale: see partial_fc.checkpoint.ModelFormat; weights of PyTorch need 1e-5 and 127.5.

    Raises:
        ValueError: a name is unknown (the message suggests the nearest one) or a number is out of range.
    """
    choose("network", network, NETWORKS)
    entry = NETWORKS[network]
    net_act = entry.net_act if net_act is None else net_act
    choose("net_act", net_act, ACTIVATIONS)
    net_output = entry.net_output if net_output is None else net_output
    choose("net_output", net_output, HEADS)
    if embedding_size < 1:
        raise ValueError(f"embedding_size is {embedding_size}, expected a positive number of dimensions, usually 512")
    if not 0.0 <= bn_mom < 1.0:
        raise ValueError(f"bn_mom is {bn_mom}, expected a number in [0, 1)")
    style = Style(net_se, net_act, bn_mom, fp16, eps, pixel_scale)
    # A new counter for unnamed nodes, so that the same call always produces the same model-symbol.json.
    with mx.name.NameManager():
        return embedding(entry.body(style), net_output, embedding_size, style, entry.centered)
