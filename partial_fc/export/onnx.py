"""A backbone of MXNet as an ONNX file.

MXNet's own exporter is not used: it needs MXNet, writes wrong graphs for PReLU, fully connected layers and fixed
gammas, asks for an opset and a version of the format newer than onnxruntime 1.6 reads, and fails with newer onnx.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import numpy as np
from onnx import TensorProto, helper

from partial_fc.checkpoint.mxnet_params import named_arrays

from .mxnet_symbol import VARIABLE, Node, read_symbol
from .normalization import takes_raw_pixels
from .onnx_ops import Graph, Tensor, convert

# What onnxruntime 1.6, of 2020, and everything since reads.
OPSET, IR_VERSION = 11, 6
BATCH, INPUT = "batch", "data"
SYMBOL_ENDING = "-symbol.json"


def to_onnx(
    nodes: list[Node],
    parameters: dict[str, np.ndarray],
    image_size: tuple[int, int] = (112, 112),
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """The ONNX file: float32 ``data`` (batch, 3, H, W), RGB 0..255, to float32 (batch, E), any batch; opset 11.

    Args:
        nodes: of read_symbol.
        parameters: name -> array, running statistics among them; float16 becomes float32.
        image_size: (H, W).
        metadata: what else the file tells of the model, by name.

    Raises:
        ValueError: an operator cannot be exported, or a parameter is missing; names it.
    """
    graph = Graph(parameters)
    values: list[Tensor | str] = []
    for node in nodes:
        if node.op != VARIABLE:
            values.append(convert(graph, node, [values[number] for number in node.inputs]))
        else:
            values.append(Tensor(INPUT, 4, 3) if node.name == INPUT else node.name)
    if not takes_raw_pixels(node.name for node in graph.nodes):
        graph.mark_raw_pixels(INPUT)
    output = values[-1]
    if not isinstance(output, Tensor) or output.dimensions != 2:
        raise ValueError(f"{nodes[-1].name} gives no embeddings (N, E): the network ends elsewhere")
    described = helper.make_graph(
        graph.nodes,
        "backbone",
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, [BATCH, 3, *image_size])],
        [helper.make_tensor_value_info(output.name, TensorProto.FLOAT, [BATCH, output.channels or "embedding"])],
        graph.initializers,
    )
    model = helper.make_model(
        described, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="partial_fc"
    )
    helper.set_model_props(model, dict(metadata or {}))
    content: bytes = model.SerializeToString()
    return content


def read_checkpoint(path: str | os.PathLike) -> tuple[list[Node], dict[str, np.ndarray]]:
    """Network and parameters that MXNet, or the original trainer, has saved.

    Args:
        path: ``<prefix>-symbol.json``, ``<prefix>-<epoch>.params``, or the folder of one such pair.

    Raises:
        OSError, ValueError: something is missing or damaged; names the file.
    """
    symbol, params = find_checkpoint(path)
    with open(symbol, "rb") as file:
        nodes = read_symbol(file.read(), symbol)
    try:
        arrays = named_arrays(params)
    except ValueError as error:
        raise ValueError(f"cannot read the parameters in {params}: {error}") from None
    return nodes, {name.split(":", 1)[-1]: array for name, array in arrays.items()}


def find_checkpoint(path: str | os.PathLike) -> tuple[str, str]:
    """The symbol file and the parameter file, of the last epoch, that a path names.

    Raises:
        OSError: one is missing.
    """
    path = os.fspath(path)
    folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    symbols = [name for name in names if name.endswith(SYMBOL_ENDING)]
    if not os.path.isdir(path):
        named = os.path.basename(path)
        symbols = [name for name in symbols if named == name or _epoch(name[: -len(SYMBOL_ENDING)], named) is not None]
    if not symbols:
        raise FileNotFoundError(f"there is no {'*' + SYMBOL_ENDING} at {path}: name what MXNet has saved")
    if len(symbols) > 1:
        raise ValueError(f"{folder} holds {', '.join(symbols)}: name one of them")
    prefix = symbols[0][: -len(SYMBOL_ENDING)]
    params = [name for name in names if _epoch(prefix, name) is not None]
    if path.endswith(".params"):
        params = [name for name in params if name == os.path.basename(path)]
    if not params:
        raise FileNotFoundError(
            f"there are no parameters {prefix}-<epoch>.params beside {os.path.join(folder, symbols[0])}"
        )
    last = max(params, key=lambda name: _epoch(prefix, name) or 0)
    return os.path.join(folder, symbols[0]), os.path.join(folder, last)


def _epoch(prefix: str, name: str) -> int | None:
    """The epoch in the name of a file of parameters; None where it is none of this prefix."""
    found = re.fullmatch(re.escape(prefix) + r"-(\d+)\.params", name)
    return int(found[1]) if found else None
