"""Small ONNX face models, valid or broken, and their expected embeddings, computed by NumPy.

The model normalizes the pixels, averages blocks of 8x8, and applies a matrix and a bias, in eight nodes.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BLOCK = 8


class TinyModel:
    """A model whose parts tests may change before `write`."""

    def __init__(self, size=(112, 112), features=16, normalizes=True, batch="batch", seed=3):
        height, width = size
        rng = np.random.default_rng(seed)
        inputs = 3 * (height // BLOCK) * (width // BLOCK)
        self.normalizes = normalizes
        self.weight = rng.normal(size=(inputs, features)).astype(np.float32)
        self.bias = rng.normal(size=features).astype(np.float32)
        self.initializers = [
            numpy_helper.from_array(value, name)
            for name, value in (
                ("mean", np.float32(127.5)),
                ("scale", np.float32(1 / 127.5)),
                ("weight", self.weight),
                ("bias", self.bias),
                ("two", np.float32(2)),
            )
        ]
        starts = [
            helper.make_node("Sub", ["data", "mean"], ["centred"], "Sub0"),
            helper.make_node("Mul", ["centred", "scale"], ["pixels"], "Mul0"),
        ]
        if not normalizes:
            starts = [
                helper.make_node("Identity", ["data"], ["same"], "first"),
                helper.make_node("Identity", ["same"], ["pixels"], "second"),
            ]
        self.nodes = starts + [
            helper.make_node("AveragePool", ["pixels"], ["blocks"], "pool", kernel_shape=[8, 8], strides=[8, 8]),
            helper.make_node("Flatten", ["blocks"], ["flat"], "flat"),
            helper.make_node("MatMul", ["flat", "weight"], ["product"], "matrix"),
            helper.make_node("Add", ["product", "bias"], ["sum"], "bias"),
            helper.make_node("Mul", ["sum", "two"], ["double"], "twice"),
            helper.make_node("Identity", ["double"], ["embedding"], "last"),
        ]
        self.inputs = [helper.make_tensor_value_info("data", TensorProto.FLOAT, [batch, 3, height, width])]
        self.outputs = [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [batch, features])]
        self.metadata = {}

    def replace_last(self, *nodes, shape=None):
        """Replaces the last node by `nodes` from "double" to "embedding", with this output shape."""
        self.nodes = self.nodes[:-1] + list(nodes)
        if shape is not None:
            self.outputs = [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, shape)]

    def replace_first(self, *steps):
        """Replaces the first two nodes by unnamed nodes from "data" to "pixels": (operator, arrays or numbers)."""
        names, nodes = ["data", *(f"step{number}" for number in range(1, len(steps))), "pixels"], []
        for before, after, (op, *values) in zip(names, names[1:], steps):
            constants = [f"{after}_{number}" for number in range(len(values))]
            for name, value in zip(constants, values):
                self.initializers.append(numpy_helper.from_array(np.array(value, np.float32), name))
            nodes.append(helper.make_node(op, [before, *constants], [after]))
        self.nodes[:2] = nodes

    def refuse_black(self, last):
        """Makes a black image, and no other, negative before `last`, which gives zeros for Relu or NaN for Sqrt."""
        weight = np.abs(self.weight)
        self.initializers[2] = numpy_helper.from_array(weight, "weight")
        self.initializers[3] = numpy_helper.from_array(np.float32(0.9) * weight.sum(axis=0), "bias")
        self.replace_last(helper.make_node(last, ["double"], ["embedding"]))

    def loop(self, times):
        """Inserts a loop of ``times`` iterations before the last node."""
        flow = {name: helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("go", "still")}
        count = helper.make_tensor_value_info("count", TensorProto.INT64, [])
        old, new = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("old", "new"))
        nodes = [helper.make_node("Identity", ["go"], ["still"]), helper.make_node("Identity", ["old"], ["new"])]
        body = helper.make_graph(nodes, "body", [count, flow["go"], old], [flow["still"], new])
        self.initializers.append(numpy_helper.from_array(np.int64(times), "times"))
        self.nodes[-1:] = [
            helper.make_node("Loop", ["times", "", "double"], ["looped"], "loop", body=body),
            helper.make_node("Identity", ["looped"], ["embedding"], "last"),
        ]

    def write(self, path):
        """Writes the file, with an opset and a format version that onnxruntime 1.6 reads; returns the path."""
        graph = helper.make_graph(self.nodes, "tiny", self.inputs, self.outputs, self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6)
        helper.set_model_props(model, self.metadata)
        path.write_bytes(model.SerializeToString())
        return str(path)

    def write_in_two(self, path, convert_attributes=False):
        """Writes the model with its weights in a separate file, weights.bin; returns the path."""
        whole = onnx.load(self.write(path))
        path.with_name("weights.bin").unlink(missing_ok=True)
        onnx.save(
            whole,
            path,
            save_as_external_data=True,
            location="weights.bin",
            size_threshold=1000,
            convert_attribute=convert_attributes,
        )
        return str(path)

    def weight_in_attribute(self):
        """Moves the weight to an attribute of a Constant in a branch of the graph."""
        self.initializers = [each for each in self.initializers if each.name != "weight"]
        value = numpy_helper.from_array(self.weight, "value")
        branch = helper.make_graph(
            [helper.make_node("Constant", [], ["chosen"], "constant", value=value)],
            "branch",
            [],
            [helper.make_tensor_value_info("chosen", TensorProto.FLOAT, self.weight.shape)],
        )
        self.initializers.append(numpy_helper.from_array(np.array(True), "yes"))
        at = next(number for number, node in enumerate(self.nodes) if node.name == "matrix")
        node = helper.make_node("If", ["yes"], ["weight"], "choice", then_branch=branch, else_branch=branch)
        self.nodes.insert(at, node)

    def slow(self, image):
        """Returns the embedding (E,) float64 of an image (H, W, 3) uint8 RGB."""
        height, width = (side // BLOCK for side in image.shape[:2])
        blocks = image.reshape(height, BLOCK, width, BLOCK, 3).mean(axis=(1, 3), dtype=np.float64)
        means = (blocks.transpose(2, 0, 1).ravel() - 127.5) / 127.5
        return 2 * (means @ self.weight.astype(np.float64) + self.bias)

    def slow_unit(self, image, mirrored=True):
        """Returns the embedding (E,) float64 of length 1, by default summed with the mirror image's."""
        embedding = self.slow(image) + (self.slow(image[:, ::-1]) if mirrored else 0)
        return embedding / np.sqrt(np.sum(embedding**2))
