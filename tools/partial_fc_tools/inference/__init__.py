"""Inference with ONNX face models: embed, compare, search. Needs onnx and onnxruntime, not MXNet."""
