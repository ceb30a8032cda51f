"""Backbones as ONNX files."""
