"""Smaller ONNX files of a backbone: weights in float16, or weights and activations in int8.

Inputs (float32 pixels), outputs (float32 embeddings) and metadata stay the same.

Shapes: n images of a batch, H, W image size.
"""

import logging
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import onnx

HALF, INT8 = "float16", "int8"
INT8_OPSET = 13  # the first with a scale per channel; onnxruntime 1.6 reads it
PRODUCTS = ["Conv", "Gemm", "MatMul"]  # the quantized operators, with nearly all of the weights and of the time


def to_half(content: bytes) -> bytes:
    """Converts a model to float16, for weights and computation, which halves its size.

    CPUs without float16 instructions convert the numbers and compute in float32.

    Raises ValueError if the model is already in float16 or int8.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = convert_float_to_float16(_in_float32(content), keep_io_types=True)
    return _ordered(model).SerializeToString()


def clipped_by_half(content: bytes) -> list[str]:
    """Returns the names of the constants too large or too small for float16, which changes them by more than 1 %."""
    from onnxruntime.transformers.float16 import convert_np_to_float16

    graph = onnx.load_model_from_string(content).graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        constants.update((node.output[0], value.t) for value in node.attribute if node.op_type == "Constant")
    constants = {name: tensor for name, tensor in constants.items() if tensor.data_type == onnx.TensorProto.FLOAT}
    arrays = {name: np.ravel(onnx.numpy_helper.to_array(tensor)) for name, tensor in constants.items()}
    return [
        name
        for name, array in arrays.items()
        if np.linalg.norm(convert_np_to_float16(array) - array) > 0.01 * np.linalg.norm(array)
    ]


def to_int8(content: bytes, batches: Iterable[np.ndarray]) -> bytes:
    """Quantizes the products of a model to int8, which reduces its size to a quarter.

    Static quantization with one scale per channel; weights are integers from -64 to 64.

    Args:
        content: content of a float32 model's file.
        batches: input of the model, (n, 3, H, W) float32, which calibrates the range of each activation.

    Raises:
        ValueError: The model is already in float16 or int8, or has an operator that does not exist in opset 13.
    """
    from onnx import version_converter
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    model = _in_float32(content)
    name = model.graph.input[0].name

    class Batches(CalibrationDataReader):
        def __init__(self) -> None:
            self._batches: Iterator[np.ndarray] = iter(batches)

        def get_next(self) -> dict[str, np.ndarray] | None:
            batch = next(self._batches, None)
            return None if batch is None else {name: batch}

    try:
        model = version_converter.convert_version(model, INT8_OPSET)
    except Exception as error:  # the converter's errors have no common base class
        raise ValueError(f"the model cannot be converted to opset {INT8_OPSET}, which int8 needs: {error}") from None
    # onnxruntime warns that its preprocessing is missing, which would remove the nodes that show the normalization.
    with tempfile.TemporaryDirectory() as folder, _without_warnings():
        full, small = (os.path.join(folder, f"{kind}.onnx") for kind in ("full", "small"))
        onnx.save(model, full)
        quantize_static(
            full,
            small,
            Batches(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=PRODUCTS,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            # 7 bits per weight: with 8 bits, sums of two products exceed 16 bits on CPUs without VNNI, which makes the
            # deviation from the original 4 to 20 times larger.
            reduce_range=True,
        )
        return _ordered(onnx.load(small)).SerializeToString()


def _in_float32(content: bytes) -> onnx.ModelProto:
    """Parses a model; raises ValueError if it is not in float32."""
    model = onnx.load_model_from_string(content)
    if any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in model.graph.initializer):
        raise ValueError(f"the model is in {HALF} already: give the original in float32")
    if any("quantizelinear" in node.op_type.lower() for node in model.graph.node):  # or DequantizeLinear, for weights
        raise ValueError(f"the model is in {INT8} already: give the original in float32")
    return model


@contextmanager
def _without_warnings() -> Iterator[None]:
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def set_metadata(content: bytes, **properties: str) -> bytes:
    """Returns the file with these metadata properties added or replaced."""
    model = onnx.load_model_from_string(content)
    old = {entry.key: entry.value for entry in model.metadata_props}
    onnx.helper.set_model_props(model, {**old, **properties})
    return model.SerializeToString()


def _ordered(model: onnx.ModelProto) -> onnx.ModelProto:
    """Sorts the nodes topologically, each directly before the node that needs it.

    Quantization puts the scales of all weights first. But readers tell from the names of a model's first nodes whether
    it takes pixels 0..255, see `takes_raw_pixels`.
    """
    graph = model.graph
    producers = {output: node for node in graph.node for output in node.output}
    ordered: dict[str, onnx.NodeProto] = {}  # by first output
    pending = [producers[output.name] for output in graph.output]
    while pending:
        inputs = [producers[name] for name in pending[-1].input if name in producers]
        missing = next((node for node in inputs if node.output[0] not in ordered), None)
        if len(pending) > len(producers):  # a cycle
            raise ValueError("int8 adds tensors with names that the model already has: export it with other names")
        if missing is not None:
            pending.append(missing)
        else:
            node = pending.pop()
            ordered[node.output[0]] = node
    nodes = list(ordered.values())
    del graph.node[:]
    graph.node.extend(nodes)
    return model
