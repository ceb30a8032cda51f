"""Backbones as ONNX files, and smaller copies of them: `partial-fc export`."""
