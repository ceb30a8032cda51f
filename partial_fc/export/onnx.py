"""Converts an MXNet backbone to ONNX.

MXNet's own exporter requires MXNet, writes wrong graphs for PReLU, fully connected layers and fixed gammas, uses an
opset and a format version that onnxruntime 1.6 cannot read, and fails with newer onnx packages.
"""

import os
import re
from collections.abc import Mapping

import numpy as np
from onnx import TensorProto, helper

from partial_fc.checkpoint.mxnet_params import named_arrays
from partial_fc.utils.regular_files import read_regular

from .mxnet_symbol import VARIABLE, Node, read_symbol
from .normalization import PIXELS, RAW, takes_raw_pixels
from .onnx_ops import Graph, Tensor, convert

OPSET, IR_VERSION = 11, 6  # readable by onnxruntime 1.6 (2020) and later
LARGEST = 2**31  # limit of a protobuf file in bytes
LARGEST_SYMBOL = 1 << 26  # limit of a network description in bytes; usual ones have 100,000
BATCH, INPUT = "batch", "data"
SYMBOL_ENDING = "-symbol.json"


def to_onnx(
    nodes: list[Node],
    parameters: dict[str, np.ndarray],
    image_size: tuple[int, int] = (112, 112),
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Converts a network to the content of an ONNX file, opset 11.

    The model maps float32 ``data`` (batch, 3, H, W), RGB 0..255, to float32 embeddings (batch, E). The batch size is
    dynamic.

    Args:
        nodes: the network, from `read_symbol`.
        parameters: arrays by name, including running statistics; float16 is converted to float32.
        image_size: (H, W).
        metadata: metadata of the ONNX file.

    Raises:
        ValueError: an operator cannot be exported or a parameter is missing; the message names it.
    """
    graph = Graph(parameters)
    values: list[Tensor | str] = []
    for node in nodes:
        if node.op != VARIABLE:
            try:
                values.append(convert(graph, node, [values[number] for number in node.inputs]))
            except (TypeError, LookupError, OverflowError) as error:
                raise ValueError(f"{node.name} has invalid inputs or attributes ({error})") from None
        else:
            values.append(Tensor(INPUT, 4, 3) if node.name == INPUT else node.name)
    if not takes_raw_pixels(node.name for node in graph.nodes):
        graph.mark_raw_pixels(INPUT)
    output = values[-1]
    if not isinstance(output, Tensor) or output.dimensions != 2:
        raise ValueError(f"the output {nodes[-1].name} is not of shape (N, E): it is not an embedding layer")
    onnx_graph = helper.make_graph(
        graph.nodes,
        "backbone",
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, [BATCH, 3, *image_size])],
        [helper.make_tensor_value_info(output.name, TensorProto.FLOAT, [BATCH, output.channels or "embedding"])],
        graph.initializers,
    )
    model = helper.make_model(
        onnx_graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="partial_fc"
    )
    helper.set_model_props(model, {PIXELS: RAW, **(metadata or {})})
    content: bytes = model.SerializeToString()
    return content


def read_checkpoint(path: str | os.PathLike) -> tuple[list[Node], dict[str, np.ndarray]]:
    """Reads a network and its parameters as saved by MXNet or the original trainer.

    Args:
        path: ``<prefix>-symbol.json``, ``<prefix>-<epoch>.params``, or a folder with one network.

    Raises:
        OSError: a file is missing.
        ValueError: a file is damaged; the message names it.
    """
    symbol, params = find_checkpoint(path)
    nodes = read_symbol(read_regular(symbol, LARGEST_SYMBOL), symbol)
    try:
        arrays = named_arrays(params)
    except ValueError as error:
        raise ValueError(f"cannot read the parameters in {params}: {error}") from None
    return nodes, {name.split(":", 1)[-1]: array for name, array in arrays.items()}


def find_checkpoint(path: str | os.PathLike) -> tuple[str, str]:
    """Returns the paths of the symbol file and the parameter file: the last epoch's unless ``path`` names one.

    Raises:
        FileNotFoundError: one of the files is missing.
        ValueError: the folder contains several networks.
    """
    path = os.fspath(path)
    folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    prefixes = [name.removesuffix(SYMBOL_ENDING) for name in names if name.endswith(SYMBOL_ENDING)]
    if not os.path.isdir(path):
        file = os.path.basename(path)
        prefixes = [prefix for prefix in prefixes if file == prefix + SYMBOL_ENDING or _epoch(prefix, file) is not None]
    if not prefixes:
        raise FileNotFoundError(f"no *{SYMBOL_ENDING} at {path}: give the path of a model saved by MXNet")
    if len(prefixes) > 1:
        symbols = ", ".join(prefix + SYMBOL_ENDING for prefix in prefixes)
        raise ValueError(f"{folder} holds {symbols}: give the path of one of them")
    prefix = prefixes[0]
    symbol = os.path.join(folder, prefix + SYMBOL_ENDING)
    params = [name for name in names if _epoch(prefix, name) is not None]
    if path.endswith(".params"):
        params = [name for name in params if name == os.path.basename(path)]
    if not params:
        raise FileNotFoundError(f"no parameters {prefix}-<epoch>.params next to {symbol}: copy them there")
    last = max(params, key=lambda name: _epoch(prefix, name) or 0)
    return symbol, os.path.join(folder, last)


def _epoch(prefix: str, name: str) -> int | None:
    """Returns the epoch in the name of a parameter file, or None for other names."""
    match = re.fullmatch(re.escape(prefix) + r"-(\d+)\.params", name)
    return int(match[1]) if match else None
