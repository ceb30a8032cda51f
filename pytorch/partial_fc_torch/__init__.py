"""Training with Partial FC on PyTorch."""
