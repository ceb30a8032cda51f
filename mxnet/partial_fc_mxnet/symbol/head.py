"""The heads, from the last feature map to the embedding.

Legend: B images in a batch, E embedding size, C channels, (H, W) size of the last map.
"""

from typing import NamedTuple

import mxnet as mx

from .blocks import Style, activation, batch_norm, conv

# "E" of the ArcFace paper (arXiv 1801.07698, section 2.2): BN - Dropout - FC - BN.
E_DROPOUT = 0.4


class FeatureMap(NamedTuple):
    """The output of a body."""

    data: mx.sym.Symbol  # (B, C, H, W)
    channels: int  # C
    side: int = 7  # H = W for images of 112 x 112


def embedding(
    features: FeatureMap, net_output: str, embedding_size: int, style: Style, centered: bool
) -> mx.sym.Symbol:
    """Adds a head, one of `HEADS`, to a feature map; the output `fc1_output` (B, E) is not normalized.

    The head is always float32: it sums over tens of thousands of numbers, and the loss needs precise angles.

    With ``centered`` the mean embedding of a batch stays at zero. With a learned offset, ArcFace pulls all embeddings
    into one cone before it separates identities, because the target's pull exceeds the other centers' push while
    theta < (pi - m2) / 2. That phase would fill the few minutes of the demo; in weeks of training it is negligible.
    """
    if style.fp16:
        features = features._replace(data=mx.sym.Cast(features.data, dtype="float32", name="features_fp32"))
    body = HEADS[net_output](features, style)
    # flatten=True is the default, but without it the ONNX exporter writes a wrong Gemm.
    body = mx.sym.FullyConnected(body, num_hidden=embedding_size, flatten=True, name="pre_fc1")
    # A cosine loss does not depend on the scale of an embedding, so the last gamma stays 1, also in saved models.
    scale = {"gamma": mx.sym.Variable("fc1_gamma", lr_mult=0.0, wd_mult=0.0)}
    offset = {"beta": mx.sym.Variable("fc1_beta", lr_mult=0.0)} if centered else {}
    return batch_norm(body, "fc1", style, fix_gamma=True, **scale, **offset)


def _full(features: FeatureMap, style: Style):
    return batch_norm(features.data, "bn1", style)


def _dropout(features: FeatureMap, style: Style):
    return mx.sym.Dropout(batch_norm(features.data, "bn1", style), p=E_DROPOUT, name="dropout1")


def _average(features: FeatureMap, style: Style):
    body = activation(batch_norm(features.data, "bn1", style), "relu1", style)
    return mx.sym.Pooling(body, global_pool=True, kernel=(7, 7), pool_type="avg", name="pool1")


def _global_depthwise(features: FeatureMap, style: Style):
    """MobileFaceNet's head, one weight per channel and position. The kernel covers the map of a 112 x 112 image."""
    data, channels, side = features
    body = conv(data, channels, "conv_6dw7_7_conv2d", kernel=side, groups=channels, pad=0)
    return batch_norm(body, "conv_6dw7_7_batchnorm", style, eps=1e-3)


HEADS = {"FC": _full, "E": _dropout, "GAP": _average, "GDC": _global_depthwise}
