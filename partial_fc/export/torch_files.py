"""Backbones saved by PyTorch, converted by the PyTorch trainer if it is installed."""

import os

import numpy as np

from partial_fc.utils.imports import import_trainer

EXPORTER = "partial_fc_torch.export"
ENDINGS = (".pth", ".pt", ".safetensors", ".ckpt")  # .ckpt is from Lightning
CONFIG, WEIGHTS = "config.json", "model.safetensors"  # what PyTorch's trainer writes for other libraries


def is_torch_model(path: str) -> bool:
    """Returns whether a path is a PyTorch file or a folder with one, besides class centers."""
    names = [name for name in os.listdir(path) if not name.startswith("rank_")] if os.path.isdir(path) else [path]
    return any(name.endswith(ENDINGS) for name in names)


def export_torch_model(path: str, image_size: int, faces: np.ndarray) -> bytes:
    """Returns the content of an ONNX file, see partial_fc_torch.export.

    Raises:
        ImportError: PyTorch or its trainer is not installed.
        OSError, ValueError: the file cannot be read, or its network is unknown.
    """
    content: bytes = import_trainer(EXPORTER).export(path, image_size, faces)
    return content
