"""Backbones that PyTorch has saved, converted by the trainer on PyTorch, where it is installed."""

import importlib
import os

import numpy as np

EXPORTER = "partial_fc_torch.export"  # which this package must not import: a tool loads it for such a file alone
ENDINGS = (".pth", ".pt")


def is_torch_model(path: str) -> bool:
    """Returns whether a path is a file of PyTorch, or a folder that holds one."""
    names = os.listdir(path) if os.path.isdir(path) else [path]
    return any(name.endswith(ENDINGS) for name in names)


def export_torch_model(path: str, image_size: int, faces: np.ndarray) -> bytes:
    """Returns the content of an ONNX file, see partial_fc_torch.export.

    Raises:
        ImportError: PyTorch or the trainer on it is missing.
        OSError, ValueError: the file cannot be read, or its network is not known.
    """
    content: bytes = importlib.import_module(EXPORTER).export(path, image_size, faces)
    return content
