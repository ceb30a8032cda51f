"""Training with Partial FC on PyTorch."""

from .backbones import get_model

__all__ = ["get_model"]
