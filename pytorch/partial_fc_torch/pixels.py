"""The normalization of pixels, which is outside of the backbones."""

from __future__ import annotations

import torch

from partial_fc.export.normalization import MEAN, SCALE


def normalized(faces: torch.Tensor) -> torch.Tensor:
    """Returns (x / 255 - 0.5) / 0.5 as float32 (N, 3, H, W), on the device of ``faces``.

    Args:
        faces: (N, H, W, 3) RGB 0..255, uint8 or float32.
    """
    return (faces.permute(0, 3, 1, 2).contiguous().to(torch.float32) - MEAN) * SCALE
