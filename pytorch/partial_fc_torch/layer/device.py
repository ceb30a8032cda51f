"""Copies between the host and the device of the layer."""

import numpy as np
import torch


def to_device(values: np.ndarray | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copies to a GPU without waiting for the work queued there; on the CPU the result shares the memory."""
    tensor = torch.as_tensor(values)
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()  # a copy from pageable memory would wait
    return tensor.to(device, non_blocking=device.type == "cuda")  # a copy to the CPU must be complete on return


class HostCopy:
    """An asynchronous copy of a tensor to the host: a GPU makes it after the work queued there."""

    def __init__(self, tensor: torch.Tensor):
        on_gpu = tensor.device.type == "cuda"
        self._copy = tensor.to("cpu", non_blocking=on_gpu)  # PyTorch allocates pinned memory
        self._copied = torch.cuda.current_stream(tensor.device).record_event() if on_gpu else None

    def wait(self) -> torch.Tensor:
        """Waits for the copy and returns it."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._copy
