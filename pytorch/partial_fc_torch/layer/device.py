"""Copies from the host to the device of the layer."""

from __future__ import annotations

import numpy as np
import torch


def to_device(values: np.ndarray | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copies to a device without waiting for the work that is queued there; on the CPU the result shares the memory."""
    tensor = torch.as_tensor(values)
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()  # from pageable memory the copy would wait
    return tensor.to(device, non_blocking=device.type == "cuda")  # to the CPU it would return before the end
