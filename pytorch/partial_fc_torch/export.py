"""Exports a backbone saved by PyTorch to ONNX: `partial-fc export`.

The epsilon of the batch norms is PyTorch's default, 1e-5, because a state_dict does not contain it.
"""

import numpy as np

from .onnx_export import OnnxExport
from .pretrained import recognized
from .published_files import read_pretrained
from .weights import set_weights


def export(path: str, image_size: int, faces: np.ndarray) -> bytes:
    """Returns the content of the ONNX file, compared with PyTorch on random images and on ``faces``.

    Args:
        path: path of a file, or of its folder, see `read_pretrained`.
        image_size: S, width and height of the images.
        faces: (N, S, S, 3) uint8 RGB.

    Raises:
        OSError: A file is missing.
        ValueError: A file is damaged, its network is unknown, or the embeddings differ.
    """
    saved = read_pretrained(path, with_classes=False)
    if saved is None:
        raise ValueError(f"{path} has no weights of PyTorch: give a .safetensors, .pth or .pt file")
    network, model = recognized(saved, image_size)
    set_weights(model, saved.weights, network)
    return OnnxExport(model, faces.transpose(0, 3, 1, 2))(num_update=0)
