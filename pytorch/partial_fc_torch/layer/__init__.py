"""The classification layer on PyTorch."""
