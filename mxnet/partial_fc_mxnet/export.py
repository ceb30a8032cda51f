"""Exports a backbone saved by MXNet or the original trainer to ONNX: `partial-fc export`."""

import os

import mxnet as mx
import numpy as np

from partial_fc.export.mxnet_symbol import to_json
from partial_fc.export.onnx import read_checkpoint

from .collectives import error_message
from .onnx_export import OnnxExport


def export(model: str, image_size: int, faces: np.ndarray) -> bytes:
    """Returns the ONNX file's content, after comparing it with MXNet on random images and on faces (N, S, S, 3) uint8.

    ``model`` is <prefix>-symbol.json, <prefix>-<epoch>.params, or their folder; faces are RGB.

    Raises:
        OSError: A file is missing.
        ValueError: A file is damaged, or the embeddings differ.
    """
    os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")  # else MXNet prints a line about oneDNN
    symbol, arg_params, aux_params = load_backbone(model)
    return OnnxExport(symbol, image_size, mx.cpu(), faces)(arg_params, aux_params, num_update=0)


def load_backbone(model: str):
    """Returns (symbol that ends at the embedding, its parameters by name, its running statistics by name), all float32.

    MXNet itself reads no file of ``model``, because it trusts the sizes and node numbers in a file.

    Raises:
        OSError: A file is missing.
        ValueError: A file is damaged, MXNet cannot use its network, or parameters are missing; the error names it.
    """
    nodes, arrays = read_checkpoint(model)
    try:
        symbol = mx.sym.load_json(to_json(nodes))
        names = [[name for name in symbol.list_arguments() if name != "data"], symbol.list_auxiliary_states()]
    except mx.MXNetError as error:
        raise ValueError(f"MXNet cannot use the network of {model}: {error_message(error)}") from None
    missing = [name for kind in names for name in kind if name not in arrays]
    if missing:
        raise ValueError(f"{model} has no parameter {missing[0]}, which its network needs: give files of one training")
    return symbol, *({name: mx.nd.array(arrays[name], dtype=np.float32) for name in kind} for kind in names)
