"""ONNX files with hostile sizes or types: embed prints one line with the file's name, submission fails a rule."""

import cv2
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from command_line import exit_code
from tiny_onnx import TinyModel


def takes(*sizes):
    def change(model):
        for dimension, size in zip(model.inputs[0].type.tensor_type.shape.dim, sizes):
            dimension.dim_value = size

    return change


def gives(kind, inputs=None, output=TensorProto.FLOAT, shape=("batch", 16), **attributes):
    """Replaces the last node by one of this kind, with ``inputs`` as its second input."""

    def change(model):
        names = ["double"]
        if inputs is not None:
            model.initializers.append(numpy_helper.from_array(np.array(inputs), "second"))
            names.append("second")
        model.replace_last(helper.make_node(kind, names, ["embedding"], "last", **attributes))
        model.outputs = [helper.make_tensor_value_info("embedding", output, shape)]

    return change


def sequence(model):
    gives("SequenceConstruct")(model)
    model.outputs = [helper.make_tensor_sequence_value_info("embedding", TensorProto.FLOAT, None)]


def untyped_weight(model):
    model.initializers.append(TensorProto(name="more", data_type=99, dims=[1]))


LARGE, SHAPE = "more than 268,435,456 numbers", "takes input of shape"
KIND, ROWS = "expected float32", "returns an array"
MODELS = {  # name -> change, error of embed, rule of submission that fails
    "batch": (takes(2**40), LARGE, "loads"),
    "batch of 19 GB": (takes(2**17), LARGE, "loads"),
    "no batch": (takes(0), "fails to run", "batch"),
    "sides": (takes(1, 3, 2**31, 2**31), LARGE, "loads"),
    "side": (takes(1, 3, 2**40, 1), LARGE, "loads"),
    "no side": (takes(1, 3, 0, 112), "cannot load", "loads"),
    "negative side": (takes(1, 3, -112, 112), SHAPE, "batch"),
    "integers": (gives("Cast", to=TensorProto.INT64, output=TensorProto.INT64), KIND, "output"),
    "text": (gives("Cast", to=TensorProto.STRING, output=TensorProto.STRING), KIND, "output"),
    "sequence": (sequence, KIND, "output"),
    "one number": (gives("ReduceSum", keepdims=0, shape=()), ROWS, "feature"),
    "one row": (gives("ReduceSum", axes=[0], shape=(1, 16)), "dynamic batch size", "together"),
    "2^64 numbers": (gives("Expand", [2**30, 2**30, 1, 16], shape=None), "fails to run", "feature"),
    "2^40 rows": (gives("Tile", [2**40, 1], shape=None), "fails to run", "feature"),
    "weight of no type": (untyped_weight, "cannot load", "loads"),
}


@pytest.mark.parametrize("name", MODELS)
def test_hostile_models(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "faces").mkdir()
    for number in range(2):
        cv2.imwrite(f"faces/{number}.png", np.random.default_rng(number).integers(0, 256, (112, 112, 3), np.uint8))
    change, error, rule = MODELS[name]
    model = TinyModel()
    change(model)
    model.write(tmp_path / "model.onnx")
    assert exit_code("embed", "faces", "--model", "model.onnx", "--resize") == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and printed.startswith("error: model.onnx") and error in printed
    assert exit_code("submission", "--model-root", ".", "--time-limit", 10000) == 1
    printed = capsys.readouterr()
    assert not printed.err
    assert next(line for line in printed.out.splitlines() if line.startswith("FAIL")).split()[1] == rule
