"""Changes of a TinyModel that fail a rule of the masked-face challenge."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper


def narrow_initializer(model):
    model.initializers[-1] = numpy_helper.from_array(np.float16(2), "half")
    model.nodes.insert(0, helper.make_node("Cast", ["half"], ["two"], "cast", to=TensorProto.FLOAT))


def no_number(model):
    model.initializers[3] = numpy_helper.from_array(np.full_like(model.bias, np.nan), "bias")


def leak(model):
    """Adds half of the batch mean to each embedding."""
    model.initializers.append(numpy_helper.from_array(np.float32(0.5), "share"))
    model.replace_last(
        helper.make_node("ReduceMean", ["double"], ["batch_mean"], "mean", axes=[0]),
        helper.make_node("Mul", ["batch_mean", "share"], ["some"], "some"),
        helper.make_node("Add", ["double", "some"], ["embedding"], "leak"),
    )


def three_dimensions(model):
    """Returns a matrix per face."""
    model.initializers.append(numpy_helper.from_array(np.array([-1, 4, 4]), "shape"))
    model.replace_last(helper.make_node("Reshape", ["double", "shape"], ["embedding"], "fold"), shape=["batch", 4, 4])


def always_one(model):
    """Returns the first row only, like a model exported with a fixed batch size of 1."""
    for name, value in (("zero", [0]), ("one", [1])):
        model.initializers.append(numpy_helper.from_array(np.array(value), name))
    model.replace_last(helper.make_node("Slice", ["double", "zero", "one"], ["embedding"], "cut"))


def seven_nodes(model):
    model.replace_last()
    model.nodes[-1].output[0] = "embedding"


def second_output(model):
    model.outputs.append(helper.make_tensor_value_info("flat", TensorProto.FLOAT, ["batch", 588]))
