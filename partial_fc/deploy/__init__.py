"""A trained backbone outside of MXNet: as an ONNX file, and in use. Needs onnx and onnxruntime, not MXNet."""

import os

# onnx uses protobuf, whose compiled form (Python 3.8 to 3.10 have one) crashes in a process that has loaded libmxnet,
# which brings its own: this must be set before either is imported.
os.environ.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")
