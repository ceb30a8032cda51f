"""ONNX detectors with the outputs of SCRFD and of YuNet, whose faces are red squares.

The score of a cell is its mean red, for the stride STRIDE only. Box and landmarks have a fixed position relative to the
cell, in units of the stride.
"""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

SIDE, STRIDE, STRIDES = 64, 16, (8, 16, 32)
BOX = np.float32([0.5, 0.25, 1.5, 2.0])  # left, top, right, bottom of the corner of a cell
LANDMARKS = np.float32([[0.25, 0.5], [0.75, 0.5], [0.5, 0.75], [0.25, 1.0], [0.75, 1.25]])


class Graph:
    """Builds an ONNX graph and writes its file."""

    def __init__(self):
        self.nodes, self.constants, self.outputs = [], [], []

    def node(self, kind, inputs, output=None, **attributes):
        output = output or f"value{len(self.nodes)}"
        inputs = [name if isinstance(name, str) else self.constant(name) for name in inputs]
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def constant(self, value):
        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def red(self, channel, stride, low, high):
        """Returns the mean of each cell (1, 1, h, w): 0 for pixels of ``low``, 1 for ``high``."""
        red = self.node("Slice", ["input", np.int64([channel]), np.int64([channel + 1]), np.int64([1])])
        cells = self.node("AveragePool", [red], kernel_shape=[stride, stride], strides=[stride, stride])
        return self.node("Mul", [self.node("Sub", [cells, np.float32(low)]), np.float32(1 / (high - low))])

    def output(self, value, name, shape):
        self.node("Reshape", [value, np.int64(shape)], name)
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def same(self, cells, value, name, shape):
        """Adds an output with ``value`` (k,) in each row."""
        rows = shape[-2]
        self.output(
            self.node("Add", [self.node("Mul", [cells, np.float32(0)]), np.tile(value, (rows, 1))]), name, shape
        )

    def write(self, path, size=(SIDE, SIDE)):
        image = helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 3, *size])
        graph = helper.make_graph(self.nodes, "tiny", [image], self.outputs, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6)
        path.write_bytes(model.SerializeToString())
        return str(path)


def scrfd(path, landmarks=True, side=SIDE, size=(SIDE, SIDE)):
    """Writes an SCRFD: two anchors per cell, the second less certain; normalized RGB input; ``size`` may have names."""
    graph = Graph()
    for stride in STRIDES:
        rows = (side // stride) ** 2
        cells = graph.node("Reshape", [graph.red(0, stride, -1, 1), np.int64([rows, 1])])
        weights = np.float32([[0.9, 0.8]]) if stride == STRIDE else np.float32([[0.1, 0.1]])
        graph.output(graph.node("Mul", [cells, weights]), f"score{stride}", [2 * rows, 1])
        both = graph.node("Reshape", [graph.node("Mul", [cells, np.float32([[1, 1]])]), np.int64([2 * rows, 1])])
        graph.same(both, BOX, f"box{stride}", [2 * rows, 4])
        if landmarks:
            graph.same(both, LANDMARKS.ravel(), f"landmarks{stride}", [2 * rows, 10])
    return graph.write(path, size)


def yunet(path):
    """Writes a YuNet: one anchor per cell; BGR input from 0 to 255; a box is its center and its sides' logarithms."""
    graph = Graph()
    middle, sides = (BOX[2:] - BOX[:2]) / 2, BOX[2:] + BOX[:2]
    for stride in STRIDES:
        rows = (SIDE // stride) ** 2
        cells = graph.node("Reshape", [graph.red(2, stride, 0, 255), np.int64([rows, 1])])
        scores = graph.node("Mul", [cells, np.float32(0.81 if stride == STRIDE else 0.1)])
        graph.output(scores, f"cls_{stride}", [1, rows, 1])
        graph.same(cells, np.float32([1]), f"obj_{stride}", [1, rows, 1])
        graph.same(cells, np.concatenate([middle, np.log(sides)]), f"bbox_{stride}", [1, rows, 4])
        graph.same(cells, LANDMARKS.ravel(), f"kps_{stride}", [1, rows, 10])
    return graph.write(path)
