"""Smaller ONNX files of a backbone: its weights in float16, or weights and activations in int8.

Input, output and metadata stay: float32 pixels to float32 embeddings.
"""

import logging
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import onnx

HALF, INT8 = "float16", "int8"
INT8_OPSET = 13  # the first with a scale for each channel; onnxruntime 1.6 reads it
PRODUCTS = ["Conv", "Gemm", "MatMul"]  # what int8 computes: nearly all of the weights and of the time


def to_half(content: bytes) -> bytes:
    """Returns a file that holds its weights, and computes, in float16: half as large.

    CPUs without float16 compute in float32 all the same, after a conversion.

    Raises:
        ValueError: The file is in float16 or int8 already.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = convert_float_to_float16(_in_float32(content), keep_io_types=True)
    return _ordered(model).SerializeToString()


def clipped_by_half(content: bytes) -> list[str]:
    """Returns the names of the constants that float16 changes by a hundredth or more: too large, or too small."""
    from onnxruntime.transformers.float16 import convert_np_to_float16

    graph = onnx.load_model_from_string(content).graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        constants.update((node.output[0], each.t) for each in node.attribute if node.op_type == "Constant")
    constants = {name: tensor for name, tensor in constants.items() if tensor.data_type == onnx.TensorProto.FLOAT}
    arrays = {name: np.ravel(onnx.numpy_helper.to_array(tensor)) for name, tensor in constants.items()}
    return [
        name
        for name, array in arrays.items()
        if np.linalg.norm(convert_np_to_float16(array) - array) > 0.01 * np.linalg.norm(array)
    ]


def to_int8(content: bytes, batches: Iterable[np.ndarray]) -> bytes:
    """Returns a file whose products are in int8, a quarter as large: static quantization, a scale for each channel.

    The numbers of the weights are -64 to 64.

    ``batches`` of the file's input, (n, 3, H, W) float32, show in what range each activation is.

    Raises:
        ValueError: The file is in float16 or int8 already, or has an operator that does not exist in opset 13.
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
    except Exception as error:  # errors of the converter have no common base class
        raise ValueError(f"the model cannot be converted to opset {INT8_OPSET}, which int8 needs: {error}") from None
    with tempfile.TemporaryDirectory() as folder, _without_advice():
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
            # 7 bits: with 8, sums of two products exceed 16 bits on CPUs without VNNI, which makes the cosine to the
            # original 4 to 20 times worse.
            reduce_range=True,
        )
        return _ordered(onnx.load(small)).SerializeToString()


def _in_float32(content: bytes) -> onnx.ModelProto:
    """Returns the model; ValueError if it is not in float32."""
    model = onnx.load_model_from_string(content)
    if any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in model.graph.initializer):
        raise ValueError(f"the model is in {HALF} already: give the original in float32")
    if any("quantizelinear" in node.op_type.lower() for node in model.graph.node):  # and DequantizeLinear of weights
        raise ValueError(f"the model is in {INT8} already: give the original in float32")
    return model


@contextmanager
def _without_advice() -> Iterator[None]:
    """A context without onnxruntime's hint at a preparation that would remove the marks of normalization.py."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def set_metadata(content: bytes, **properties: str) -> bytes:
    """Returns the file with these metadata in addition to its own, or in place of them."""
    model = onnx.load_model_from_string(content)
    known = {each.key: each.value for each in model.metadata_props}
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, {**known, **properties})
    return model.SerializeToString()


def _ordered(model: onnx.ModelProto) -> onnx.ModelProto:
    """Orders the nodes as ONNX demands, the scales of weights next to the node that takes them.

    Readers tell by the names of the first nodes whether a model takes pixels 0..255, see normalization.py.
    """
    graph = model.graph
    makers = {output: node for node in graph.node for output in node.output}
    ordered: dict[str, onnx.NodeProto] = {}  # by first output
    pending = [makers[each.name] for each in graph.output]
    while pending:
        inputs = [makers[name] for name in pending[-1].input if name in makers]
        missing = next((each for each in inputs if each.output[0] not in ordered), None)
        if len(pending) > len(makers):
            raise ValueError("int8 adds tensors of names that the model has already: export it with other names")
        if missing is not None:
            pending.append(missing)
        else:
            node = pending.pop()
            ordered[node.output[0]] = node
    nodes = list(ordered.values())
    del graph.node[:]
    graph.node.extend(nodes)
    return model
