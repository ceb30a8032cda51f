"""A trained backbone outside of MXNet: as an ONNX file, and in use. Needs onnx and onnxruntime, not MXNet."""
