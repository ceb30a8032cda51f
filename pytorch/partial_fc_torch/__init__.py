"""Partial FC on PyTorch: the distributed classification layer, backbones and the trainer around them."""

from .errors import NOT_INSTALLED

try:
    import torch
except ImportError as error:
    raise ImportError(f"{NOT_INSTALLED}: {error}") from error
if not hasattr(torch, "Tensor"):  # a folder named torch on the path poses as an empty package
    raise ImportError(NOT_INSTALLED)

from .backbones import get_model
from .layer.margin_losses import ArcFace, CombinedMarginLoss, CosFace
from .partial_fc import PartialFC, PartialFC_V2

__all__ = ["ArcFace", "CombinedMarginLoss", "CosFace", "PartialFC", "PartialFC_V2", "get_model"]
