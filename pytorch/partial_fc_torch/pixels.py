"""The normalization of pixels, which is not part of the backbones."""

import torch

from partial_fc.export.normalization import MEAN, SCALE


def normalized(images: torch.Tensor, memory_format: torch.memory_format = torch.channels_last) -> torch.Tensor:
    """Returns (x / 255 - 0.5) / 0.5 for RGB pixels in 0..255 as float32, with the same shape and device.

    Convolutions are fastest if ``memory_format`` is the format of their weights.
    """
    return ((images.to(torch.float32) - MEAN) * SCALE).contiguous(memory_format=memory_format)
