"""Copies between the host and the device of the layer."""

import numpy as np
import torch


def to_device(values: np.ndarray | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copies to a device without waiting for the work that is queued there; on the CPU the result shares the memory."""
    tensor = torch.as_tensor(values)
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()  # from pageable memory the copy would wait
    return tensor.to(device, non_blocking=device.type == "cuda")  # to the CPU it would return before the end


class HostCopy:
    """A copy of a tensor to the host, which a GPU makes after the work that is queued there, while the host goes on."""

    def __init__(self, tensor: torch.Tensor):
        on_gpu = tensor.device.type == "cuda"
        self._copy = tensor.to("cpu", non_blocking=on_gpu)  # to pinned memory
        self._copied = torch.cuda.current_stream(tensor.device).record_event() if on_gpu else None

    def wait(self) -> torch.Tensor:
        """Returns the copy when it is complete."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._copy
