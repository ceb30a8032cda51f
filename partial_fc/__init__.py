"""Partial FC without a framework: what any trainer of it needs and NumPy can say.

Nothing here imports MXNet, Horovod or PyTorch, so a sibling trainer can share it.
"""
