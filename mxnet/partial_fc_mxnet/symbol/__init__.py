"""Backbones as MXNet symbols, chosen by name: ``get_symbol("r50", embedding_size=512)``.

Legend: B images in a batch, E embedding size, (H, W) image size.

Every backbone takes the variable `data`, float32 (B, 3, H, W), RGB 0..255, H and W multiples of 16 (112 x 112 in the
field), and gives one output `fc1_output`, float32 (B, E). Initialize with
``mx.init.Xavier(rnd_type="gaussian", factor_type="out", magnitude=2)``; batch norm scales start at 1 and PReLU
slopes at 0.25 by themselves.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import mxnet as mx

from . import mobilefacenet, resnet, small
from .blocks import ACTIVATIONS, BN_MOMENTUM, Style
from .head import HEADS, FeatureMap, embedding

__all__ = ["NETWORKS", "Network", "get_symbol"]


class Network(NamedTuple):
    """One row of the table: how the body is built, `body(style, **arguments)`, and what it uses unless told."""

    body: Callable[..., FeatureMap]
    arguments: dict[str, Any]
    net_act: str = "prelu"
    net_output: str = "FC"
    centered: bool = False


def _plain(*units: int) -> Network:
    return Network(resnet.plain_body, {"units": units})


def _grouped(*units: int) -> Network:
    return Network(resnet.grouped_body, {"units": units})


NETWORKS: dict[str, Network] = {
    "r18": _plain(2, 2, 2, 2),
    "r34": _plain(3, 4, 6, 3),
    "r50": _plain(3, 4, 14, 3),
    "r100": _plain(3, 13, 30, 3),
    "r124": _plain(3, 13, 40, 5),
    "r200": _plain(6, 26, 60, 6),
    "rx50": _grouped(3, 4, 6, 3),
    "rx101": _grouped(3, 4, 23, 3),
    "mbf": Network(mobilefacenet.body, {}, net_output="GDC"),
    "small": Network(small.body, {}, net_act="relu", centered=True),
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
) -> mx.sym.Symbol:
    """Build a backbone: `data` (B, 3, H, W) -> `fc1_output` (B, E).

    network: a key of `NETWORKS`.
    net_se: squeeze-and-excitation in every block.
    net_act: one of `ACTIVATIONS`; None is the network's own (PReLU, for `small` ReLU).
    net_output: head, "FC" (BN - FC - BN), "E" (BN - dropout - FC - BN), "GAP" (BN - act - average - FC - BN) or
        "GDC" (depth-wise over the whole map - FC - BN); None is the network's own ("FC", for `mbf` "GDC").
    bn_mom: momentum of the batch norms' moving statistics.
    fp16: computes in float16 up to the head; input, output, names and shapes are the same, and so parameters of the
        one, saved as float32, are parameters of the other. For GPUs: MXNet has no float16 convolutions on the CPU.

    Layer names depend on the arguments alone, never on what was built before.
    Raises ValueError for an unknown name (with the nearest known one) or a number out of range.
    """
    row = NETWORKS[_known("network", network, NETWORKS)]
    net_act = _known("net_act", row.net_act if net_act is None else net_act, ACTIVATIONS)
    net_output = _known("net_output", row.net_output if net_output is None else net_output, HEADS)
    if embedding_size < 1:
        raise ValueError(f"embedding_size is {embedding_size}: give a positive number of dimensions, 512 in the field")
    if not 0.0 <= bn_mom < 1.0:
        raise ValueError(f"bn_mom is {bn_mom}: give a number from 0 up to, not including, 1")
    style = Style(net_se, net_act, bn_mom, fp16)
    # A fresh counter for the nodes without a name: the same call then writes the same model-symbol.json.
    with mx.name.NameManager():
        return embedding(row.body(style, **row.arguments), net_output, embedding_size, style, row.centered)


def _known(setting: str, value: str, known: Iterable[str]) -> str:
    if value in known:
        return value
    names = ", ".join(known)
    near = difflib.get_close_matches(str(value), list(known), n=1, cutoff=0.0)[0]
    raise ValueError(f"unknown {setting} {value!r}: did you mean {near!r}? Known are {names}")
