"""From the last feature map to the embedding.

Legend: B images in a batch, E embedding size, C channels, (H, W) the last map's size.
"""

from __future__ import annotations

from typing import NamedTuple

import mxnet as mx

from .blocks import Style, activation, batch_norm, conv

# "E" of the ArcFace paper (arXiv 1801.07698, section 2.2): BN - Dropout - FC - BN.
E_DROPOUT = 0.4


class FeatureMap(NamedTuple):
    """What a body gives to its head: a map (B, C, H, W), its C, and its H = W for 112 x 112 images."""

    data: mx.sym.Symbol
    channels: int
    side: int = 7


def embedding(
    features: FeatureMap, net_output: str, embedding_size: int, style: Style, centered: bool
) -> mx.sym.Symbol:
    """Put the head `net_output`, one of `HEADS`, on a map; the output `fc1_output` is (B, E), not normalized.

    `centered`: the mean embedding of a batch stays zero. A learnt offset lets ArcFace pull all embeddings into one
    cone before it tells any two people apart: its pull on a target exceeds the others' push where theta is below
    (pi - m2) / 2. On the demo that costs it the few minutes it has; with weeks of training it does not matter.

    The head is float32 in any case: it sums over tens of thousands of numbers, and the loss wants its angles exact.
    """
    if style.fp16:
        features = features._replace(data=mx.sym.Cast(features.data, dtype="float32", name="features_fp32"))
    body = HEADS[net_output](features, style)
    # flatten=True is the default, but the ONNX exporter writes a wrong Gemm unless it is spelled out.
    body = mx.sym.FullyConnected(body, num_hidden=embedding_size, flatten=True, name="pre_fc1")
    # The scale of an embedding means nothing to a cosine loss, so the last gamma stays 1.
    offset = {"beta": mx.sym.Variable("fc1_beta", lr_mult=0.0)} if centered else {}
    return batch_norm(body, "fc1", style, fix_gamma=True, **offset)


def _full(features: FeatureMap, style: Style):
    return batch_norm(features.data, "bn1", style)


def _dropout(features: FeatureMap, style: Style):
    return mx.sym.Dropout(batch_norm(features.data, "bn1", style), p=E_DROPOUT, name="dropout1")


def _average(features: FeatureMap, style: Style):
    body = activation(batch_norm(features.data, "bn1", style), "relu1", style)
    return mx.sym.Pooling(body, global_pool=True, kernel=(7, 7), pool_type="avg", name="pool1")


def _global_depthwise(features: FeatureMap, style: Style):
    """One weight a channel and place, MobileFaceNet's head. The kernel covers the whole map of a 112 x 112 image."""
    data, channels, side = features
    body = conv(data, channels, "conv_6dw7_7_conv2d", kernel=side, groups=channels, pad=0)
    return batch_norm(body, "conv_6dw7_7_batchnorm", style, eps=1e-3)


HEADS = {"FC": _full, "E": _dropout, "GAP": _average, "GDC": _global_depthwise}
