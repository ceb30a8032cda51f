"""The normalization of pixels, which is outside of the backbones."""

import torch

from partial_fc.export.normalization import MEAN, SCALE


def normalized(images: torch.Tensor, memory_format: torch.memory_format = torch.channels_last) -> torch.Tensor:
    """Returns (x / 255 - 0.5) / 0.5 of RGB pixels 0..255 as float32, of the same shape and on the same device.

    In ``memory_format`` a convolution whose weights have it reads the numbers fastest.
    """
    return ((images.to(torch.float32) - MEAN) * SCALE).contiguous(memory_format=memory_format)


def to_images(faces: torch.Tensor) -> torch.Tensor:
    """Returns faces (N, H, W, 3) as images (N, 3, H, W), which a convolution reads as they lie (channels_last)."""
    return faces.permute(0, 3, 1, 2)
