"""The command of a PyTorch training: `partial-fc train`, and ``python -m partial_fc.train`` for one process."""
