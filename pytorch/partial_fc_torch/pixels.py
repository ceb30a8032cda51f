"""The normalization of pixels, which is outside of the backbones."""

import torch

from partial_fc.export.normalization import MEAN, SCALE


def normalized(images: torch.Tensor) -> torch.Tensor:
    """Returns (x / 255 - 0.5) / 0.5 of RGB pixels 0..255 as float32, of the same shape and on the same device.

    The numbers lie in memory as a convolution reads them fastest (channels_last).
    """
    return ((images.to(torch.float32) - MEAN) * SCALE).contiguous(memory_format=torch.channels_last)


def to_images(faces: torch.Tensor) -> torch.Tensor:
    """Returns faces (N, H, W, 3) as images (N, 3, H, W), which a convolution reads as they lie (channels_last)."""
    return faces.permute(0, 3, 1, 2)
