"""Exports a backbone saved by MXNet or the original trainer to ONNX: `partial-fc export`."""

import os

import mxnet as mx
import numpy as np

from partial_fc.export.mxnet_symbol import EMBEDDING
from partial_fc.export.onnx import find_checkpoint

from .collectives import error_message
from .onnx_export import OnnxExport


def export(model: str, image_size: int, faces: np.ndarray) -> bytes:
    """Returns the content of the ONNX file, compared with MXNet on random images and on faces (N, S, S, 3) uint8 RGB.

    ``model`` is <prefix>-symbol.json, <prefix>-<epoch>.params, or their folder.

    Raises:
        OSError: A file is missing.
        ValueError: A file is damaged, or the embeddings differ.
    """
    os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")  # else MXNet prints a line about oneDNN
    symbol, arg_params, aux_params = load_backbone(*find_checkpoint(model))
    return OnnxExport(symbol, image_size, mx.cpu(), faces)(arg_params, aux_params, num_update=0)


def load_backbone(symbol_path: str, params_path: str):
    """Loads (symbol that ends at the embedding, its parameters, its running statistics), arrays float32 by name.

    Raises:
        ValueError: MXNet cannot read a file, or parameters are missing; names the file.
    """
    symbol = _load(mx.sym.load, symbol_path)
    if f"{EMBEDDING}_output" in symbol.get_internals().list_outputs():
        symbol = symbol.get_internals()[f"{EMBEDDING}_output"]
    loaded = _load(mx.nd.load, params_path)
    names = {"arg": [name for name in symbol.list_arguments() if name != "data"], "aux": symbol.list_auxiliary_states()}
    missing = [f"{kind}:{name}" for kind in names for name in names[kind] if f"{kind}:{name}" not in loaded]
    if missing:
        raise ValueError(
            f"{params_path} has no {missing[0]}, which {symbol_path} needs: give files of the same training"
        )
    params = [{name: loaded[f"{kind}:{name}"].astype(np.float32) for name in names[kind]} for kind in names]
    return symbol, *params


def _load(read, path: str):
    try:
        return read(path)
    except mx.MXNetError as error:
        raise ValueError(f"MXNet cannot read {path}: {error_message(error)}") from None
