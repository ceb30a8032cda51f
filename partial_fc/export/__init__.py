"""Export of backbones to ONNX."""
