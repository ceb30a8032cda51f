"""Exports a backbone saved by MXNet or the original trainer to ONNX and compares it with MXNet.

Example: python -m partial_fc_mxnet.export models/r50-arcface-emore/model-0000.params --pairs lfw.bin
"""

from __future__ import annotations

import argparse
import os

import mxnet as mx
import numpy as np

from partial_fc.checkpoint import replace_file
from partial_fc.data.pairs_bin import read_pairs
from partial_fc.evaluation.validation_set import decode_faces
from partial_fc.export.mxnet_symbol import EMBEDDING
from partial_fc.export.onnx import find_checkpoint
from partial_fc.training.saving import ONNX_NAME
from partial_fc.utils.cli import add_force, run_command, start, whole_number

from .errors import error_message
from .onnx_export import OnnxExport

FACES = 8


def main() -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m partial_fc_mxnet.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="<prefix>-symbol.json, <prefix>-<epoch>.params, or their folder")
    parser.add_argument("--out", metavar="FILE", help=f"default: {ONNX_NAME} in the same folder")
    parser.add_argument("--pairs", metavar="BIN", help="validation pairs, to compare with MXNet on faces as well")
    parser.add_argument("--image-size", type=whole_number(1), default=112, help="H = W in pixels (default: 112)")
    add_force(parser)
    args = parser.parse_args()
    os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")  # else MXNet prints a line about oneDNN
    return run_command(lambda: _export(args.model, args.out, args.pairs, args.image_size, args.force))


def _export(model: str, out: str | None, pairs: str | None, image_size: int, force: bool) -> int:
    symbol_path, params_path = find_checkpoint(model)
    out = out or os.path.join(os.path.dirname(symbol_path), ONNX_NAME)
    if os.path.exists(out) and not force:
        raise FileExistsError(
            f"{out} already exists and may have metadata that this would lose: give --out FILE, or --force"
        )
    symbol, arg_params, aux_params = load_backbone(symbol_path, params_path)
    images = read_pairs(pairs)[0][:FACES] if pairs else []
    faces = decode_faces(images, image_size, pairs or "")
    content = OnnxExport(symbol, image_size, mx.cpu(), faces)(arg_params, aux_params, num_update=0)
    replace_file(out, [content])
    print(f"{out}: {len(content) / 2**20:.1f} MB, the embeddings of {params_path} (cosine distance below 1e-4)")
    return 0


def load_backbone(symbol_path: str, params_path: str):
    """Loads a backbone.

    Returns:
        (symbol that ends at the embedding, its parameters, its running statistics), the arrays float32 by name.

    Raises:
        ValueError: MXNet cannot read a file, or parameters are missing; names the file.
    """
    symbol = _load(mx.sym.load, symbol_path)
    if f"{EMBEDDING}_output" in symbol.get_internals().list_outputs():
        symbol = symbol.get_internals()[f"{EMBEDDING}_output"]
    loaded = _load(mx.nd.load, params_path)
    missing = [
        key
        for kind, names in (("arg", symbol.list_arguments()), ("aux", symbol.list_auxiliary_states()))
        for key in (f"{kind}:{name}" for name in names if name != "data")
        if key not in loaded
    ]
    if missing:
        raise ValueError(
            f"{params_path} has no {missing[0]}, which {symbol_path} needs: give files of the same training"
        )
    arg_params = {name: loaded[f"arg:{name}"].astype(np.float32) for name in symbol.list_arguments() if name != "data"}
    aux_params = {name: loaded[f"aux:{name}"].astype(np.float32) for name in symbol.list_auxiliary_states()}
    return symbol, arg_params, aux_params


def _load(read, path: str):
    try:
        return read(path)
    except mx.MXNetError as error:
        raise ValueError(f"MXNet cannot read {path}: {error_message(error)}") from None


if __name__ == "__main__":
    start(main)
