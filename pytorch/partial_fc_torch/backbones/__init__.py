"""Backbones as ``torch.nn.Module``, chosen by name: ``get_model("r50", num_features=512)``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from partial_fc.checkpoint.backbone_layers import UNITS
from partial_fc.utils.config import choose

from .backbone import EPS, Backbone, Options
from .iresnet import IResNet
from .mobilefacenet import MobileFaceNet
from .small import Small

__all__ = ["EPS", "NETWORKS", "Backbone", "get_model"]

NETWORKS: dict[str, Callable[[Options], Backbone]] = {
    **{name: partial(IResNet, units=units) for name, units in UNITS.items()},
    "mbf": MobileFaceNet,
    "small": Small,
}


def get_model(
    name: str,
    *,
    dropout: float = 0.0,
    fp16: bool = False,
    num_features: int = 512,
    image_size: int = 112,
    eps: float = EPS,
) -> Backbone:
    """Builds a backbone with new weights, see `Backbone`: images (B, 3, S, S) -> embeddings (B, E).

    Args:
        name: a key of `NETWORKS`.
        dropout: probability to drop an input of the fully connected layer, in [0, 1).
        fp16: computes the body under a float16 autocast of its own, as arcface_torch does. Not needed where the caller
            autocasts.
        num_features: E.
        image_size: S, a multiple of 16.
        eps: epsilon of the batch norms; 2e-5 for weights of MXNet's trainer.

    Raises:
        ValueError: The name is unknown (the message has the nearest known one) or a number is out of range.
    """
    choose("network", name, NETWORKS)
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout is {dropout}, expected a number in [0, 1)")
    if num_features < 1:
        raise ValueError(f"num_features is {num_features}, expected a positive number of dimensions, usually 512")
    if image_size < 16 or image_size % 16:
        raise ValueError(f"image_size is {image_size}, expected a multiple of 16, usually 112")
    model = NETWORKS[name](Options(num_features, dropout, fp16, image_size))
    model.eps = eps
    return model
